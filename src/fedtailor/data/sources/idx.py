"""MNIST's own file format, IDX: a magic number, the dimensions, then the bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.files import check_labels, unpacked_bytes
from fedtailor.errors import FedTailorError

UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read the unsigned bytes of an IDX file, gzipped or not, as an array with this number of dimensions."""
    data = unpacked_bytes(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:2] != b"\0\0":
        raise FedTailorError(f"{path} is not an IDX file, or only its beginning. Get it again.")
    if data[2] != UNSIGNED_BYTE or data[3] != dimensions:
        raise FedTailorError(
            f"{path} holds IDX type 0x{data[2]:02x} with {data[3]} dimensions; expected unsigned bytes (0x08) with {dimensions}."
        )
    shape = tuple(int(side) for side in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) - start != math.prod(shape):
        raise FedTailorError(
            f"{path} says it holds {shape} bytes but has {len(data) - start}: it is cut off or damaged."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


@dataclass(frozen=True)
class _Mnist(Source):
    folders: ClassVar[tuple[str, ...]]
    labels: ClassVar[tuple[str, ...]]

    def read(self, root: Path) -> Pool:
        parts = [self._part(root, "train"), self._part(root, "t10k")]
        test = np.repeat([False, True], [len(y) for _, y in parts])
        x = np.concatenate([x for x, _ in parts])[:, None]
        y = np.concatenate([y for _, y in parts]).astype(np.int64)
        return Pool(x, y, classes=10, test=test, labels=self.labels)

    def _part(self, root: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._file(root, f"{part}-images-idx3-ubyte"), self._file(root, f"{part}-labels-idx1-ubyte")
        x, y = read_idx(images, 3), read_idx(labels, 1)
        if len(x) != len(y):
            raise FedTailorError(f"{images} holds {len(x)} images but {labels} holds {len(y)} labels.")
        if x.shape[1:] != (28, 28):
            raise FedTailorError(f"{images} holds images of {x.shape[2]}×{x.shape[1]} pixels, not 28×28.")
        check_labels(y, 10, labels)
        return x, y

    def _file(self, root: Path, name: str) -> Path:
        looked = [root / folder / (name + ending) for folder in self.folders for ending in ("", ".gz")]
        found = next((path for path in looked if path.is_file()), None)
        if found is None:
            raise missing(self.name, looked)
        return found


@sources.register("mnist")
@dataclass(frozen=True)
class Mnist(_Mnist):
    """70,000 handwritten digits, 28×28 (LeCun et al., 1998)."""

    folders = ("mnist", "MNIST/raw")
    labels = tuple("0123456789")


@sources.register("fashion-mnist", "fmnist", "fashionmnist")
@dataclass(frozen=True)
class FashionMnist(_Mnist):
    """70,000 pictures of clothes, 28×28 (Xiao et al., 2017)."""

    folders = ("fashion-mnist", "FashionMNIST/raw")
    labels = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
