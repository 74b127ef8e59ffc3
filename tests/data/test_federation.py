import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedtailor.data.sources  # noqa: F401
from fedtailor.data.client_data import ClientData, Split
from fedtailor.data.description import Description
from fedtailor.data.federation import Federation
from fedtailor.data.partitions.iid import Iid
from fedtailor.data.pool import Pool, sources
from fedtailor.errors import FedTailorError


def images(n=120, classes=4):
    x = np.random.default_rng(0).integers(0, 256, (n, 3, 5, 6), dtype=np.uint8)
    return x, np.arange(n) % classes


def everything(federation):
    splits = [s for c in federation.clients for s in (c.train, c.test)] + [federation.server]
    taken = [(s.take(torch.arange(len(s))), s.y) for s in splits]
    return torch.cat([x for x, _ in taken]).numpy(), torch.cat([y for _, y in taken]).numpy()


def in_order(x, y):
    flat = np.concatenate([x.reshape(len(x), -1), y[:, None]], axis=1)
    return flat[np.lexsort(flat.T)]


def test_every_sample_keeps_its_label():
    x, y = images()
    federation = Federation.from_arrays(x, y, clients=5, partition="dirichlet", beta=1.0, minimum=5)
    np.testing.assert_array_equal(in_order(*everything(federation)), in_order(x, y))
    assert federation.shape == (3, 5, 6)
    assert federation.clients[0].train.x.dtype == torch.uint8
    assert federation.clients[0].train.y.dtype == torch.int64
    assert (federation.task.shape, federation.task.classes, federation.task.vocabulary) == ((3, 5, 6), 4, 0)


def test_the_seed_decides():
    x, y = images()
    one, same, other = (Federation.from_arrays(x, y, clients=4, partition="iid", seed=s) for s in (1, 1, 2))
    assert torch.equal(one.clients[2].train.x, same.clients[2].train.x)
    assert not torch.equal(one.clients[2].train.x, other.clients[2].train.x)


def test_torch_and_numpy_are_the_same():
    x, y = images()
    a = Federation.from_arrays(x, y, clients=3, partition="iid")
    b = Federation.from_arrays(torch.from_numpy(x), torch.from_numpy(y), clients=3, partition=Iid())
    assert torch.equal(a.clients[1].test.x, b.clients[1].test.x)


def test_a_memory_mapped_pool_is_shared(tmp_path):
    x, y = images()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    shared = Federation.from_pool(Pool(mapped, y, 4), "iid", 4)
    copied = Federation.from_pool(Pool(x, y, 4), "iid", 4)
    for a, b in zip(shared.clients, copied.clients, strict=True):
        assert a.train.rows is not None
        assert b.train.rows is None
        assert len(a.train) == len(b.train)
        index = torch.tensor([3, 0, 2])
        assert torch.equal(a.train.take(index), b.train.take(index))
        assert torch.equal(a.train.y, b.train.y)
    assert shared.clients[0].train.x.data_ptr() == shared.clients[1].test.x.data_ptr()
    assert len(copied.clients[0].train.x) == len(copied.clients[0].train)
    np.testing.assert_array_equal(shared.label_counts, copied.label_counts)


def test_the_server_gets_its_share():
    x, y = images(400)
    federation = Federation.from_arrays(x, y, clients=4, partition="paired", beta=1.0)
    assert len(federation.server) == 30  # a tenth of the 300 training samples
    assert "30 at the server" in repr(federation)
    np.testing.assert_array_equal(in_order(*everything(federation)), in_order(x, y))


def test_owners_give_their_names():
    x, y = images(40)
    pool = Pool(x, y, 4, owner=np.arange(40) % 2, owners=("north", "south"))
    assert [c.name for c in Federation.from_pool(pool, "natural", 2).clients] == ["north", "south"]
    assert [c.name for c in Federation.from_pool(pool, "iid", 2).clients] == ["client-0", "client-1"]


@pytest.mark.parametrize(
    ("given", "shape", "dtype"),
    [
        (np.zeros((8, 28, 28), np.uint8), (1, 28, 28), torch.uint8),
        (np.zeros((8, 28, 30, 3), np.uint8), (3, 28, 30), torch.uint8),
        (np.zeros((8, 28, 30, 1), np.uint8), (1, 28, 30), torch.uint8),
        (np.zeros((8, 3, 28, 30), np.uint8), (3, 28, 30), torch.uint8),
        (np.zeros((8, 7), np.float64), (7,), torch.float32),
        (np.zeros((8, 7), np.float16), (7,), torch.float32),
        (torch.zeros(8, 2, 9, dtype=torch.bfloat16), (2, 9), torch.float32),
        (np.zeros((8, 7), np.int32), (7,), torch.int32),
        (np.zeros((8, 7), np.uint16), (7,), torch.int32),
    ],
)
def test_shapes_and_types(given, shape, dtype):
    y = np.arange(8) % 2
    whole = Federation.from_arrays(given, y, clients=2, partition="iid")
    apart = Federation.from_clients([(given[:4], y[:4]), (given[4:], y[4:])])
    for federation in (whole, apart):
        assert federation.shape == shape
        assert {s.x.dtype for c in federation.clients for s in (c.train, c.test)} == {dtype}


def test_channels_last_keeps_its_pixels():
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    federation = Federation.from_clients([(x, np.arange(4))], test_share=0.0)
    np.testing.assert_array_equal(federation.clients[0].train.x.numpy(), x.transpose(0, 3, 1, 2))


def test_token_ids_have_a_vocabulary():
    x = np.array([[1, 5, 0], [2, 2, 0], [3, 9, 1], [1, 1, 1]])
    assert Federation.from_arrays(x, np.array([0, 1, 0, 1]), clients=2, partition="iid").vocabulary == 10
    assert Federation.from_clients([(x[:2], [0, 1]), (x[2:], [0, 1])]).task.vocabulary == 10


def test_from_clients_splits_or_takes_the_given_test_part():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3))
    y = np.arange(20) % 2
    federation = Federation.from_clients(
        {"a": (x[:8], y[:8]), "b": (x[8:12], y[8:12], x[12:], y[12:])}, test_share=0.25
    )
    a, b = federation.clients
    assert (a.name, len(a.train), len(a.test)) == ("a", 6, 2)
    assert (b.name, len(b.train), len(b.test)) == ("b", 4, 8)
    np.testing.assert_array_equal(b.test.x.numpy(), x[12:].astype(np.float32))
    assert federation.sizes.tolist() == [6, 4]
    assert federation.label_counts.sum() == 10


def test_from_table(tmp_path):
    frame = pd.DataFrame(
        {"site": ["x", "y"] * 20, "a": np.arange(40.0), "b": 1.0, "ill": ["no", "yes", "yes", "no"] * 10}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    for table in (frame, tmp_path / "t.csv", str(tmp_path / "t.csv")):
        federation = Federation.from_table(table, client="site", label="ill", features=["a"], test_share=0.5)
        assert [c.name for c in federation.clients] == ["x", "y"]
        assert federation.sizes.tolist() == [10, 10]
        assert federation.labels == ("no", "yes")
        assert federation.shape == (1,)
    assert Federation.from_table(frame, client="site", label="ill").shape == (1,)  # b is constant
    with pytest.raises(FedTailorError, match=r"no column 'sight'.*'site'"):
        Federation.from_table(frame, client="sight", label="ill")
    with pytest.raises(FedTailorError, match=r"nothing\.csv"):
        Federation.from_table(tmp_path / "nothing.csv", client="site", label="ill")


def test_from_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "cache"))
    for client, classes in (("paris", "ab"), ("rome", "bc")):
        for label in classes:
            folder = tmp_path / "photos" / client / label
            folder.mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (9, 7), (i, 0, 0)).save(folder / f"{i}.png")
    federation = Federation.from_folder(tmp_path / "photos", size=8)
    assert [c.name for c in federation.clients] == ["paris", "rome"]
    assert federation.labels == ("a", "b", "c")
    assert federation.shape == (3, 8, 8)
    assert federation.sizes.tolist() == [6, 6]
    assert federation.label_counts[0, 2] == federation.label_counts[1, 0] == 0
    assert Federation.from_folder(tmp_path / "photos", size=8, channels=1).shape == (1, 8, 8)
    with pytest.raises(FedTailorError, match="channels = 2"):
        Federation.from_folder(tmp_path / "photos", channels=2)


X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([], "at least one client"),
        ({"a": (X, Y), "b": (X, Y, X)}, "client 'b': expected .* got 3 arrays"),
        ({"a": (X, Y), "b": (X, Y[:3])}, "client 'b' has 4 samples but 3 labels"),
        ({"a": (X, Y), "b": (X[:0], Y[:0])}, "client 'b' has no sample"),
        ({"a": (X, Y), "b": (X[:0], Y[:0], X, Y)}, "'b' has no training sample"),
        (
            {"a": (X, Y), "b": (np.zeros((4, 2), np.float32), Y)},
            "client 'b' has 2 float32 where the first client has 3",
        ),
        (
            {"a": (X, Y), "b": (np.zeros((4, 3), np.uint8), Y)},
            "client 'b' has 3 uint8 where the first client has 3 float",
        ),
        ({"a": (X, Y), "b": (X, Y, X[:, :2], Y)}, "test part of client 'b' has 2"),
        (
            {"a": (X, Y), "b": (np.full((4, 3), np.nan), Y)},
            "3 of 3 samples in the training part of client 'b' hold NaN",
        ),
        ({"a": (X, Y), "b": (X, Y - 1)}, "client 'b' has labels below 0"),
        ({"a": (X, Y), "b": (X, Y * 0.5)}, "client 'b' has labels of type float64"),
        ({"a": (X, Y), "b": (X, Y == 1)}, "client 'b' has labels of type bool"),
        ({"a": (X, Y), "b": (X, Y[:, None])}, r"y of client 'b' has shape \(4, 1\)"),
        ({"a": (X > 0, Y)}, "x of client 'a' has values of type bool"),
        ({"a": (X.astype(complex), Y)}, "values of type complex128"),
        ({"a": (np.full((4, 3), "z"), Y)}, "values of type <U1"),
        ({"a": (X[:, 0], Y)}, r"x of client 'a' has shape \(4,\)"),
        ({"a": (X.astype(int) - 1, Y)}, "whole numbers below 0"),
        ({"a": (np.zeros((4, 3, 3), int), Y)}, "Images must be uint8"),
        ({"a": ([[1.0], [1.0, 2.0]], Y[:2])}, "rows differ in length"),
        ({"a": ((X[:4], Y[:4]), (X[4:6], Y[4:6]))}, "y is not an array: its rows differ in length"),
    ],
)
def test_what_cannot_be_a_federation_is_named(parts, complaint):
    with pytest.raises(FedTailorError, match=complaint):
        Federation.from_clients(parts)


def test_other_mistakes():
    with pytest.raises(FedTailorError, match="2 clients are called 'a'"):
        Federation.from_clients([(X, Y), (X, Y)], names=["a", "a"])
    with pytest.raises(FedTailorError, match="2 clients but 1 names"):
        Federation.from_clients([(X, Y), (X, Y)], names=["a"])
    with pytest.raises(FedTailorError, match=r"test_share = 1\.0"):
        Federation.from_clients([(X, Y)], test_share=1.0)
    with pytest.raises(FedTailorError, match="arrays are empty"):
        Federation.from_arrays(X[:0], Y[:0])
    with pytest.raises(FedTailorError, match=r"lie in 0\.\.0"):
        Federation.from_arrays(X, Y, clients=2, classes=1)
    with pytest.raises(FedTailorError, match=r"partition\.betta.*'beta'"):
        Federation.from_arrays(X, Y, clients=2, betta=1.0)
    with pytest.raises(FedTailorError, match="partition itself"):
        Federation.from_arrays(X, Y, clients=2, partition=Iid(), beta=1.0)
    with pytest.raises(FedTailorError, match=r"no partition 'dirichlett'.*'dirichlet'"):
        Federation.from_arrays(X, Y, clients=2, partition="dirichlett")
    with pytest.raises(FedTailorError, match="mean and std"):
        Federation.from_pool(Pool(np.zeros((4, 3, 2, 2), np.uint8), Y, 2, mean=(0.5,) * 4), "iid", 2)


def test_one_sample_is_trained_on():
    federation = Federation.from_clients([(X[:1], Y[:1])], test_share=0.9)
    assert (len(federation.clients[0].train), len(federation.clients[0].test)) == (1, 0)


def test_repr_reads_well():
    split = Split(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    client = ClientData("a", split, split)
    federation = Federation([client], Description((1, 28, 28), 2, dtype="uint8"), Split(split.x[:0], split.y[:0]))
    assert repr(split) == "Split(3 samples of 1×28×28 uint8)"
    assert repr(federation).splitlines() == [
        "Federation: 1 clients, 2 classes, samples of 1×28×28 uint8",
        "  3 training and 3 test samples",
        "  training samples per client: smallest 3, median 3, largest 3",
        "  classes per client:          smallest 2, median 2, largest 2",
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_told_in_memory_mapped_files_too(tmp_path, bad):
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    x[17, 1] = bad
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    pool = sources.build("arrays", {"path": str(tmp_path)}).read(tmp_path)
    assert isinstance(pool.x, np.memmap)
    with pytest.raises(
        FedTailorError, match=r"1 of .* samples in the t.* part of client .* hold NaN or infinite values"
    ):
        Federation.from_pool(pool, "iid", 3)


def test_a_memory_mapped_file_is_looked_through_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.data.split_check.PIECE", 3 * 4 * 5)  # five samples at a time
    x, y = np.ones((40, 3), np.float32), np.arange(40) % 2
    x[[3, 38]] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(FedTailorError, match="2 of 40 samples"):
        Federation.from_pool(Pool(np.load(tmp_path / "x.npy", mmap_mode="r"), y, 2), Iid(test_share=0.0), 1)


def test_a_client_is_found_by_number_or_name():
    part = (np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))
    federation = Federation.from_clients({"north": part, "south": part, "3": part})
    assert [federation.number(c) for c in (0, np.int64(1), "south", "3")] == [0, 1, 1, 2]
    for client, says in (
        ("nort", "There is no client 'nort'. Did you mean 'north'? They are 0 to 2, or by name: north, south, 3."),
        (3, "There is no client 3. They are 0 to 2"),
        (-1, "There is no client -1."),
        (1.5, "There is no client 1.5."),
        (None, "There is no client None."),
    ):
        with pytest.raises(FedTailorError) as error:
            federation.number(client)
        assert says in str(error.value)


def test_samples_that_hold_nothing_are_refused():
    with pytest.raises(FedTailorError, match="its samples hold nothing"):
        Federation.from_clients([(np.ones((4, 0), np.float32), np.array([0, 1, 0, 1]))])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clients": "x"}, "clients = 'x' is not allowed: expected a whole number"),
        ({"classes": 1.5}, "classes = 1.5 is not allowed: expected a whole number"),
        ({"classes": 10**9}, "FEDTAILOR_MAX_CLASSES"),
        ({"partition": 5}, "partition = 5 is not a name"),
        ({"partition": Iid}, "partition = .* is not a name"),
    ],
)
def test_what_cannot_be_asked_for_is_told(options, says):
    with pytest.raises(FedTailorError, match=says):
        Federation.from_arrays(*images(), **options)


def test_tables_that_cannot_be_read_are_told():
    twice = pd.DataFrame([[1, 2, 3]], columns=["a", "a", "b"])
    lists = pd.DataFrame({"a": [1, 2], "b": [[1], [2]], "c": ["x", "y"]})
    for table, says in ((5, "not a int"), (twice, "more than one column 'a'"), (lists, "must be words or numbers")):
        with pytest.raises(FedTailorError, match=says):
            Federation.from_table(table, client="c", label="b")


def test_samples_set_aside_are_the_clients_own_and_nobody_is_left_without(federation):
    aside = federation.set_aside(0.25)
    assert [len(c.train) for c in aside.clients] == [9, 5, 15, 7]  # of 12, 7, 20 and 9
    assert len(aside.server) == 12
    parts = [*(c.train for c in aside.clients), aside.server]
    before = sorted(row.tolist() for c in federation.clients for row in c.train.x)
    assert sorted(row.tolist() for part in parts for row in part.x) == before
    assert all(len(c.train) == 1 for c in federation.set_aside(0.99).clients)
    with pytest.raises(FedTailorError, match="share = 1 is not allowed"):
        federation.set_aside(1)


def test_few_arrays_are_dealt_to_fewer_clients(caplog):
    x, y = np.zeros((30, 3), np.float32), np.arange(30) % 2
    federation = Federation.from_arrays(x, y, partition="iid")
    assert 1 < len(federation.clients) < 20
    assert "cannot deal these 30 samples well to the usual 20 clients" in caplog.text
    assert len(Federation.from_arrays(x, y, partition="iid", clients=15).clients) == 15
