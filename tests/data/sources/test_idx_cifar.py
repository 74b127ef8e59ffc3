"""MNIST's and CIFAR's files, written by hand and read back."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

import fedtailor.data.sources  # noqa: F401
from fedtailor.data.pool import Pool, sources
from fedtailor.errors import FedTailorError
from fedtailor.registry import options

rng = np.random.default_rng(0)


def read(name: str, root: Path) -> Pool:
    return sources.build(name, {}).read(root)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, compress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    x, y = rng.integers(0, 256, (7, 28, 28), np.uint8), rng.integers(0, 10, 7).astype(np.uint8)
    for part, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        for kind, array in (("images-idx3", x[rows]), ("labels-idx1", y[rows])):
            file = folder / f"{part}-{kind}-ubyte"
            if compress:
                file.with_name(file.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                file.write_bytes(idx(array))
    return x, y


@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist"), ("fmnist", "FashionMNIST/raw")],
)
@pytest.mark.parametrize("compress", [True, False])
def test_idx(tmp_path: Path, name: str, folder: str, compress: bool) -> None:
    x, y = write_mnist(tmp_path / folder, compress)
    pool = read(name, tmp_path)
    assert pool.x.shape == (7, 1, 28, 28)
    assert np.array_equal(pool.x[:, 0], x)
    assert pool.x.dtype == np.uint8
    assert np.array_equal(pool.y, y)
    assert pool.test is not None
    assert pool.test.tolist() == [False] * 5 + [True] * 2
    assert (pool.classes, len(pool.labels)) == (10, 10)


LABELS = idx(np.zeros(5, np.uint8))
PACKED = gzip.compress(LABELS, mtime=0)  # without a clock in its header: the same test on every worker


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an IDX file"),
        (LABELS[:6], "not an IDX file"),
        (b"PK" + LABELS[2:], "not an IDX file"),
        (LABELS[:-1], "cut off"),
        (LABELS + b"\0", "cut off"),
        (b"\0\0\x0d" + LABELS[3:], "0x0d"),
        (b"\0\0\x08\x03" + LABELS[4:] + bytes(9), "3 dimensions"),
        (LABELS[:4] + b"\xff\xff\xff\xff" + LABELS[8:], "cut off"),
        (LABELS[:-1] + b"\x0a", "label 10"),
        (idx(np.zeros(4, np.uint8)), "5 images but .* 4 labels"),
        (PACKED[:-6], "damaged"),
        (PACKED[:12] + b"zz" + PACKED[14:], "damaged"),
    ],
)
def test_bad_idx(tmp_path: Path, content: bytes, says: str) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(FedTailorError, match=f"(?s)train-(images|labels).*{says}"):
        read("mnist", tmp_path)


def test_idx_of_another_size_or_empty(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 8, 9), np.uint8)))
    with pytest.raises(FedTailorError, match=r"t10k-images.*9×8"):
        read("mnist", tmp_path)
    for kind, array in (("images-idx3", np.zeros((0, 28, 28), np.uint8)), ("labels-idx1", np.zeros(0, np.uint8))):
        (tmp_path / "mnist" / f"t10k-{kind}-ubyte").write_bytes(idx(array))
    with pytest.raises(FedTailorError, match=r"t10k-labels.*no samples"):
        read("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "known"), [("mnist", "mnist"), ("cifar10", "cifar-10-batches-bin"), ("cifar100", "cifar-100-python")]
)
def test_missing(tmp_path: Path, name: str, known: str) -> None:
    with pytest.raises(FedTailorError, match=f"(?s){known}.*fedtailor data get {name}"):
        read(name, tmp_path)


CIFAR = {"cifar10": (10, [3, 2, 1, 1, 1, 4]), "cifar100": (100, [8, 4])}


def samples(name: str) -> tuple[np.ndarray, np.ndarray]:
    classes, sizes = CIFAR[name]
    return rng.integers(0, 256, (sum(sizes), 3, 32, 32), np.uint8), rng.integers(0, classes, sum(sizes))


def write_binary(name: str, root: Path, x: np.ndarray, y: np.ndarray) -> list[Path]:
    folder = root / ("cifar-10-batches-bin" if name == "cifar10" else "cifar-100-binary")
    names = (
        [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        if name == "cifar10"
        else ["train.bin", "test.bin"]
    )
    folder.mkdir()
    bounds = np.cumsum([0, *CIFAR[name][1]])
    for file, start, end in zip(names, bounds, bounds[1:], strict=False):
        coarse = b"" if name == "cifar10" else b"\x13"
        (folder / file).write_bytes(b"".join(coarse + bytes([y[i]]) + x[i].tobytes() for i in range(start, end)))
    return [folder / file for file in names]


def write_pickled(name: str, root: Path, x: np.ndarray, y: np.ndarray, protocol: int, as_bytes: bool) -> list[Path]:
    folder = root / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if name == "cifar10" else ["train", "test"]
    key = "labels" if name == "cifar10" else "fine_labels"
    folder.mkdir()
    bounds = np.cumsum([0, *CIFAR[name][1]])
    for file, start, end in zip(names, bounds, bounds[1:], strict=False):
        batch = {"data": x[start:end].reshape(end - start, -1), key: y[start:end].tolist(), "coarse_labels": [0]}
        written = {k.encode(): v for k, v in batch.items()} if as_bytes else batch
        (folder / file).write_bytes(pickle.dumps(written, protocol))
    words = [f"c{i}".encode() if as_bytes else f"c{i}" for i in range(CIFAR[name][0])]
    meta = {"label_names" if name == "cifar10" else "fine_label_names": words}
    (folder / ("batches.meta" if name == "cifar10" else "meta")).write_bytes(pickle.dumps(meta, protocol))
    return [folder / file for file in names]


def check_cifar(pool: Pool, name: str, x: np.ndarray, y: np.ndarray) -> None:
    assert np.array_equal(pool.x, x)
    assert pool.x.dtype == np.uint8
    assert np.array_equal(pool.y, y)
    assert pool.test is not None
    assert pool.test.tolist() == [False] * 8 + [True] * 4
    assert pool.mean == pool.std == (0.5, 0.5, 0.5)
    assert pool.classes == CIFAR[name][0]


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_binary(tmp_path: Path, name: str) -> None:
    x, y = samples(name)
    files = write_binary(name, tmp_path, x, y)
    check_cifar(read(name, tmp_path), name, x, y)
    words = [f"c{i}" for i in range(CIFAR[name][0])]
    listed = files[0].parent / ("batches.meta.txt" if name == "cifar10" else "fine_label_names.txt")
    listed.write_text("\n".join(words) + "\n\n")
    assert read(name, tmp_path).labels == tuple(words)


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize(("protocol", "as_bytes"), [(2, False), (2, True), (5, False)])
def test_cifar_python(tmp_path: Path, name: str, protocol: int, as_bytes: bool) -> None:
    x, y = samples(name)
    write_pickled(name, tmp_path, x, y, protocol, as_bytes)
    pool = read(name, tmp_path)
    check_cifar(pool, name, x, y)
    assert pool.labels[7] == "c7"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (bytes(3072), "3072 bytes"),
        (bytes(3073)[:-1], "3072 bytes"),
        (b"\x0a" + bytes(3072), "label 10"),
    ],
)
def test_bad_binary(tmp_path: Path, content: bytes, says: str) -> None:
    files = write_binary("cifar10", tmp_path, *samples("cifar10"))
    files[2].write_bytes(content)
    with pytest.raises(FedTailorError, match=f"data_batch_3.bin.*{says}"):
        read("cifar10", tmp_path)
    files[2].unlink()
    with pytest.raises(FedTailorError, match=r"(?s)not there.*data_batch_3.bin"):
        read("cifar10", tmp_path)


class Harm:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def test_bad_pickles(tmp_path: Path) -> None:
    x, y = samples("cifar100")
    train = write_pickled("cifar100", tmp_path, x, y, 2, False)[0]
    good, rows = train.read_bytes(), x.reshape(12, -1)
    bad = {
        "damaged": good[:5000],
        r"posix\.system": pickle.dumps({"data": Harm(f"touch {tmp_path}/executed")}),
        "no 'data'": pickle.dumps([1]),
        "no 'data' of": pickle.dumps({"data": rows[:, :9], "fine_labels": [1] * 12}),
        "no 'data' of 3072": pickle.dumps({"data": rows.astype(float), "fine_labels": [1] * 12}),
        "no 'fine_labels'": pickle.dumps({"data": rows, "fine_labels": [1] * 11}),
        "no 'fine_labels' with": pickle.dumps({"data": rows, "fine_labels": ["1"] * 12}),
        "label 100": pickle.dumps({"data": rows, "fine_labels": [100] * 12}),
    }
    for says, content in bad.items():
        train.write_bytes(content)
        with pytest.raises(FedTailorError, match=f"train.*{says}"):
            read("cifar100", tmp_path)
    assert not (tmp_path / "executed").exists()


def test_digits() -> None:
    from sklearn.datasets import load_digits

    pool = read("digits", Path("nowhere"))
    reference = load_digits()
    assert (pool.x.shape, pool.x.dtype, pool.test, pool.classes) == ((1797, 1, 8, 8), np.uint8, None, 10)
    shades = np.array([round(grey * 255 / 16) for grey in range(17)])
    assert np.array_equal(pool.x[:, 0], shades[reference.images.astype(int)])
    assert np.array_equal(pool.y, reference.target)


def test_every_source_is_registered_and_described() -> None:
    images = {
        "cifar10",
        "cifar100",
        "digits",
        "fashion-mnist",
        "femnist",
        "flowers102",
        "folder",
        "mnist",
        "tiny-imagenet",
    }
    others = {"agnews", "arrays", "har", "heart", "hub", "pfllib", "sites", "table", "text-csv"}
    assert set(sources.classes) == images | others
    for cls in sources.classes.values():
        assert (cls.__doc__ or "").strip().endswith(".")
        assert all(option.meaning for option in options(cls))
