"""Sources that know who owns each sample: LEAF, PFLlib, HAR and arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor.data.sources  # noqa: F401
from fedtailor.data.pool import Pool, sources
from fedtailor.data.sources.har import standardized
from fedtailor.errors import FedTailorError

rng = np.random.default_rng(0)


def read(root: Path, source: str, **options: Any) -> Pool:
    return sources.build(source, options).read(root)


def leaf(users: dict[str, tuple[np.ndarray, list[int]]]) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": (x / 255).tolist(), "y": y} for user, (x, y) in users.items()},
    }


def grey(n: int) -> np.ndarray:
    return rng.integers(0, 256, (n, 784))


@pytest.mark.parametrize("below", ["femnist", "femnist/data"])
def test_femnist(tmp_path: Path, below: str) -> None:
    a, b, c = grey(2), grey(1), grey(3)
    for part, name, users in (
        ("train", "0.json", {"bob": (a, [0, 61])}),
        ("train", "1.json", {"ann": (b, [5])}),
        ("test", "0.json", {"bob": (c, [1, 2, 3])}),
    ):
        (tmp_path / below / part).mkdir(parents=True, exist_ok=True)
        (tmp_path / below / part / name).write_text(json.dumps(leaf(users)))
    pool = read(tmp_path, "femnist")
    assert np.array_equal(pool.x.reshape(6, 784), np.concatenate([a, b, c]))
    assert (pool.x.shape, pool.x.dtype) == ((6, 1, 28, 28), np.uint8)
    assert pool.y.tolist() == [0, 61, 5, 1, 2, 3]
    assert pool.owners == ("ann", "bob")
    assert pool.owner is not None
    assert pool.owner.tolist() == [1, 1, 0, 1, 1, 1]
    assert pool.test is not None
    assert pool.test.tolist() == [False] * 3 + [True] * 3
    assert (pool.classes, len(pool.labels)) == (62, 62)


def test_pixels_are_rounded(tmp_path: Path) -> None:
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    content = leaf({"bob": (np.full((1, 784), 254.7), [0])})
    (tmp_path / "femnist" / "train" / "0.json").write_text(json.dumps(content))
    assert set(read(tmp_path, "femnist").x.ravel()) == {255}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"users": ["bob", "eve"]}, "not a LEAF file"),
        ({"num_samples": [1]}, "should have 1 images"),
        ({"user_data": {"bob": {"x": [[0.5] * 784] * 2, "y": [0, 62]}}}, "label 62"),
        ({"user_data": {"bob": {"x": [[0.5] * 784] * 2, "y": [0, -1]}}}, "label -1"),
        ({"user_data": {"bob": {"x": [[0.5] * 784] * 2, "y": [0, 1.5]}}}, "not whole numbers"),
        ({"user_data": {"bob": {"x": [[0.5] * 783] * 2, "y": [0, 1]}}}, "784"),
        ({"user_data": {"bob": {"x": [[0.5] * 784, [0.5]], "y": [0, 1]}}}, "not numbers of one length"),
        ({"user_data": {"bob": {"x": [["a"] * 784] * 2, "y": [0, 1]}}}, "not numbers"),
        ({"user_data": {"bob": {"x": [[1.5] * 784] * 2, "y": [0, 1]}}}, "outside 0..1"),
        ({"user_data": {"bob": {"x": [[float("nan")] * 784] * 2, "y": [0, 1]}}}, "outside 0..1"),
        ({"user_data": {"bob": {"x": [[10**400] * 784] * 2, "y": [0, 1]}}}, "not numbers"),
        ({"user_data": {"bob": {"x": None, "y": None}}}, "user 'bob'"),
        ({"user_data": []}, "not a LEAF file"),
        ({"users": [], "num_samples": []}, "no users"),
    ],
)
def test_bad_leaf(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    file = tmp_path / "femnist" / "train" / "all.json"
    file.write_text(json.dumps({**leaf({"bob": (grey(2), [0, 1])}), **change}))
    with pytest.raises(FedTailorError, match=rf"all\.json.*{says}"):
        read(tmp_path, "femnist")


@pytest.mark.parametrize("content", [b"", b'{"users": ["a"', b"[]", b"\xff\xfe\x00", b"[" * 100_000])
def test_bad_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    (tmp_path / "femnist" / "train" / "all.json").write_bytes(content)
    with pytest.raises(FedTailorError, match=r"all\.json is not"):
        read(tmp_path, "femnist")


def test_no_femnist(tmp_path: Path) -> None:
    with pytest.raises(FedTailorError, match=r"(?s)femnist/data/test/\*\.json.*LEAF"):
        read(tmp_path, "femnist")


def write_pfllib(top: Path, plain: bool = False) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
    written = {}
    for part, size in (("train", 3), ("test", 2)):
        (top / part).mkdir(parents=True)
        for client in (0, 2, 10):
            x, y = rng.normal(size=(size, 3, 4, 4)).astype(np.float32), rng.integers(0, 5, size)
            data: dict[str, Any] = {"x": x, "y": y} if plain else {"data": np.array({"x": x, "y": y}, object)}
            np.savez_compressed(top / part / f"{client}.npz", **data)
            written[part, client] = x, y
    (top / "config.json").write_text(json.dumps({"num_clients": 3, "num_classes": 7}))
    return written


@pytest.mark.parametrize("plain", [True, False])
def test_pfllib(tmp_path: Path, plain: bool) -> None:
    written = write_pfllib(tmp_path / "Cifar10", plain)
    pool = read(tmp_path, "pfllib", path="Cifar10")
    assert np.array_equal(pool.x, np.concatenate([x for x, _ in written.values()]))
    assert pool.x.dtype == np.float32
    assert np.array_equal(pool.y, np.concatenate([y for _, y in written.values()]))
    assert pool.owners == ("0", "2", "10")
    assert pool.owner is not None
    assert pool.owner.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 2 + [1] * 2 + [2] * 2
    assert pool.test is not None
    assert pool.test.tolist() == [False] * 9 + [True] * 6
    assert (pool.classes, pool.vocabulary) == (7, 0)
    (tmp_path / "Cifar10" / "config.json").unlink()
    assert read(tmp_path, "pfllib", path="Cifar10").classes == pool.y.max() + 1


def test_pfllib_texts(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    x = np.empty(2, object)
    x[:] = [[1, 2, 3], [4, 5, 0]]
    np.savez(tmp_path / "train" / "0.npz", data=np.array({"x": x, "y": [0, 1]}, object))
    pool = read(tmp_path, "pfllib", path=str(tmp_path))
    assert pool.x.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert (pool.x.dtype, pool.vocabulary, pool.classes) == (np.int32, 6, 2)


class Harm:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"data": np.array(Harm("touch executed"), object)}, r"posix\.system"),
        ({"data": np.array({"x": np.zeros((2, 3))}, object)}, "no x and y"),
        ({"data": np.array([1, 2], object)}, "no x and y"),
        ({"z": np.zeros(3)}, "no x and y"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3, int)}, "y must label every row"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, "y must label every row"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2, int)}, "y must label every row"),
        ({"data": np.array({"x": [[1], [2, 3]], "y": [0, 1]}, object)}, "one shape"),
        ({"x": np.zeros((2, 3, 4, 4)), "y": np.array([0, 7])}, "label 7"),
        ({"x": np.zeros((2, 3, 4, 4)), "y": np.array([0, -1])}, "label -1"),
    ],
)
def test_bad_pfllib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_pfllib(tmp_path / "set")
    np.savez(tmp_path / "set" / "train" / "2.npz", **data)
    with pytest.raises(FedTailorError, match=rf"2\.npz.*{says}"):
        read(tmp_path, "pfllib", path="set")
    assert not (tmp_path / "executed").exists()


def test_damaged_pfllib(tmp_path: Path) -> None:
    write_pfllib(tmp_path / "set")
    file = tmp_path / "set" / "test" / "0.npz"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for content in (b"", whole[:200], bytes(flipped), b"no zip file"):
        file.write_bytes(content)
        with pytest.raises(FedTailorError, match=r"0\.npz"):
            read(tmp_path, "pfllib", path="set")
    np.savez(file, x=np.zeros((2, 5)), y=np.zeros(2, int))
    with pytest.raises(FedTailorError, match="different shapes"):
        read(tmp_path, "pfllib", path="set")
    for config in ("{", "[]", '{"num_classes": "7"}'):
        write_config = tmp_path / "set" / "config.json"
        write_config.write_text(config)
        file.write_bytes(whole)
        with pytest.raises(FedTailorError, match=r"config\.json"):
            read(tmp_path, "pfllib", path="set")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedTailorError, match="not a PFLlib folder"):
        read(tmp_path, "pfllib", path="empty")


def write_har(root: Path, **changes: Any) -> dict[str, np.ndarray]:
    arrays = {
        "x": rng.normal(size=(4, 9, 128)).astype(np.float16),
        "y": np.array([0, 5, 2, 2], np.uint8),
        "subject": np.array([4, 29, 4, 0], np.uint8),
        "test": np.array([0, 1, 0, 0], np.uint8),
    } | changes
    (root / "har").mkdir(exist_ok=True)
    np.savez(root / "har" / "har.npz", **arrays)
    return arrays


def test_har(tmp_path: Path) -> None:
    arrays = write_har(tmp_path)
    pool = read(tmp_path, "har")
    assert pool.x.dtype == np.float32
    assert np.allclose(pool.x, standardized(arrays["x"].astype(np.float32)), atol=1e-6)
    assert pool.owners == ("0", "4", "29")
    assert pool.owner is not None
    assert pool.owner.tolist() == [1, 2, 1, 0]
    assert pool.test is not None
    assert pool.test.tolist() == [False, True, False, False]
    assert pool.classes == 6


def test_har_laid_out_step_by_step_is_put_in_order(tmp_path: Path) -> None:
    waves = np.sin(np.arange(128) / 10 + np.arange(4 * 9).reshape(4, 9, 1)).astype(np.float32)
    write_har(tmp_path, x=waves)
    in_order = read(tmp_path, "har").x
    write_har(tmp_path, x=waves.transpose(0, 2, 1).reshape(4, 9, 128))
    assert np.array_equal(read(tmp_path, "har").x, in_order)
    assert np.allclose(in_order[1, 6], (waves[1, 6] - 0.8053) / 0.4145, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"y": np.array([0, 6, 1, 1])}, "0..5"),
        ({"x": np.zeros((4, 9, 100))}, r"\(n, 9, 128\)"),
        ({"subject": np.zeros(3)}, "client has shape"),
        ({"y": np.array([0, -1, 1, 1])}, "label -1"),
        ({"x": np.array([Harm("touch executed")], object)}, "never loaded"),
    ],
)
def test_bad_har(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_har(tmp_path, **changes)
    with pytest.raises(FedTailorError, match=rf"har\.npz.*{says}"):
        read(tmp_path, "har")
    assert not (tmp_path / "executed").exists()


def test_har_missing_or_cut_off(tmp_path: Path) -> None:
    with pytest.raises(FedTailorError, match=r"(?s)har\.npz.*subject"):
        read(tmp_path, "har")
    write_har(tmp_path)
    file = tmp_path / "har" / "har.npz"
    for content in (b"", file.read_bytes()[:3000], b"text"):
        file.write_bytes(content)
        with pytest.raises(FedTailorError, match=r"har\.npz cannot be read"):
            read(tmp_path, "har")


def test_arrays_in_a_folder_are_mapped(tmp_path: Path) -> None:
    x = rng.integers(0, 256, (5, 3, 4, 4), np.uint8)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", [0, 1, 2, 1, 0])
    pool = read(tmp_path, "arrays", path=str(tmp_path))
    assert isinstance(pool.x, np.memmap)
    assert np.array_equal(pool.x, x)
    assert (pool.classes, pool.owner, pool.test, pool.vocabulary) == (3, None, None, 0)
    assert pool.mean == (0.5,) * 3
    np.save(tmp_path / "client.npy", np.array(["b", "a", "b", "b", "a"]))
    np.save(tmp_path / "test.npy", np.array([True, False, False, False, True]))
    pool = read(tmp_path, "arrays", path=str(tmp_path))
    assert pool.owners == ("a", "b")
    assert pool.owner is not None
    assert pool.owner.tolist() == [1, 0, 1, 1, 0]
    assert pool.test is not None
    assert pool.test.tolist() == [True, False, False, False, True]


def test_arrays_in_one_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=[0, 1, 2], client=[10, 9, 10])
    pool = read(tmp_path, "arrays", path="a.npz")
    assert pool.x.dtype == np.float32
    assert pool.owners == ("9", "10")
    np.savez(tmp_path / "ids.npz", x=np.array([[1, 4], [2, 0]]), y=[0, 1])
    assert read(tmp_path, "arrays", path="ids.npz").vocabulary == 5


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.eye(3)}, "no array 'y'"),
        ({"x": np.eye(3), "y": np.arange(2)}, "y has shape"),
        ({"x": np.eye(3), "y": np.arange(3), "test": np.zeros(2)}, "test has shape"),
        ({"x": np.arange(3), "y": np.arange(3)}, "x has (shape|values of type)"),
        ({"x": np.array([["a"]] * 3), "y": np.arange(3)}, "x has (shape|values of type)"),
        ({"x": np.eye(3), "y": np.array([[1, 2], [3, 4], [5, 6]])}, "one label per sample"),
        (
            {"x": np.eye(3), "y": np.arange(3), "weight": np.array([1, -1, 1])},
            "weights must be finite and not negative",
        ),
        ({"x": np.eye(3), "y": np.array([0, -1, 2])}, "label -1"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "no samples"),
        ({"x": -np.eye(3, dtype=int), "y": np.arange(3)}, "below 0"),
        ({"x": np.eye(3), "y": np.array([0, {}, 2], object)}, "never loaded"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FedTailorError, match=rf"a\.npz.*{says}"):
        read(tmp_path, "arrays", path="a.npz")


def test_a_single_array_is_not_enough(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3))
    with pytest.raises(FedTailorError, match=r"x\.npy cannot be read.*x and y"):
        read(tmp_path, "arrays", path="x.npy")
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
    with pytest.raises(FedTailorError, match=r"x\.npy is damaged or not an \.npy file"):
        read(tmp_path, "arrays", path=str(tmp_path))


def test_images_given_as_arrays_get_their_channels_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shape, expected in (((6, 8, 9), (1, 8, 9)), ((6, 8, 9, 3), (3, 8, 9)), ((6, 3, 8, 9), (3, 8, 9))):
        np.savez(tmp_path / "a.npz", x=rng.integers(0, 255, shape, dtype=np.uint8), y=np.arange(6) % 2)
        assert sources.build("arrays", {"path": str(tmp_path / "a.npz")}).read(tmp_path).x.shape[1:] == expected
