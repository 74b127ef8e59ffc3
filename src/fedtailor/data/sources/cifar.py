"""CIFAR-10 and CIFAR-100, in the official binary layout or the official python layout (whose pickles are read, never run)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedtailor.data.pickles import read_pickle
from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.files import check_labels, file_bytes
from fedtailor.errors import FedTailorError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Cifar(Source):
    classes: ClassVar[int]
    label_bytes: ClassVar[int]  # label bytes per binary record; the last one is the label
    label_key: ClassVar[str]  # key of the labels in a pickled batch
    binary: ClassVar[tuple[str, tuple[str, ...], str, str]]  # folder, training files, test file, file of class names
    pickled: ClassVar[tuple[str, tuple[str, ...], str, str]]
    names_key: ClassVar[str]

    def read(self, root: Path) -> Pool:
        looked = []
        for layout, read in ((self.binary, self._binary_batch), (self.pickled, self._pickled_batch)):
            folder, train, test, _ = layout
            files = [root / folder / name for name in (*train, test)]
            looked += files
            if not files[0].is_file():
                continue
            for file in files:
                if not file.is_file():
                    raise missing(self.name, [file])
            return self._pool([read(file) for file in files], self._names(root))
        raise missing(self.name, looked)

    def _pool(self, batches: list[tuple[np.ndarray, np.ndarray]], names: tuple[str, ...]) -> Pool:
        sizes = [len(y) for _, y in batches]
        test = np.repeat([False, True], [sum(sizes[:-1]), sizes[-1]])
        x = np.concatenate([x for x, _ in batches]).reshape(-1, 3, 32, 32)
        y = np.concatenate([y for _, y in batches])
        centre = (0.5, 0.5, 0.5)
        return Pool(x, y, self.classes, test=test, labels=names, mean=centre, std=centre)

    def _binary_batch(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        data = file_bytes(file)
        record = self.label_bytes + PIXELS
        if not data or len(data) % record:
            raise FedTailorError(
                f"{file} has {len(data)} bytes, which is not a whole number of {record}-byte records: it is empty, cut off or "
                "of another data set."
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, record)
        y = records[:, self.label_bytes - 1].astype(np.int64)
        check_labels(y, self.classes, file)
        return records[:, self.label_bytes :], y

    def _pickled_batch(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        batch = _entries(read_pickle(file_bytes(file), str(file)))
        x, labels = batch.get("data"), batch.get(self.label_key)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS:
            raise FedTailorError(f"{file} has no 'data' of {PIXELS} bytes per row: it is not a batch of {self.name}.")
        if not isinstance(labels, list) or not all(type(label) is int for label in labels) or len(labels) != len(x):
            raise FedTailorError(
                f"{file} has no '{self.label_key}' with a whole number for each of its {len(x)} images."
            )
        y = np.array(labels, np.int64)
        check_labels(y, self.classes, file)
        return x, y

    def _names(self, root: Path) -> tuple[str, ...]:
        """Return the class names, if a file next to the batches holds them."""
        text, meta = (root / layout[0] / layout[3] for layout in (self.binary, self.pickled))
        found: Iterable[Any] = ()
        if text.is_file():
            found = file_bytes(text).decode("latin-1").split()
        elif meta.is_file():
            found = _entries(read_pickle(file_bytes(meta), str(meta))).get(self.names_key, ())
        names = tuple(name.decode("latin-1") if isinstance(name, bytes) else str(name) for name in found)
        return names if len(names) == self.classes else ()


def _entries(batch: Any) -> dict[str, Any]:
    # Files that were loaded and saved again by Python 3 often have bytes as keys.
    if not isinstance(batch, dict):
        return {}
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in batch.items()}


@sources.register("cifar10", "cifar-10")
@dataclass(frozen=True)
class Cifar10(_Cifar):
    """60,000 small colour photographs in 10 classes, 32×32 (Krizhevsky, 2009)."""

    classes = 10
    label_bytes = 1
    label_key, names_key = "labels", "label_names"
    binary = (
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        "batches.meta.txt",
    )
    pickled = ("cifar-10-batches-py", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")


@sources.register("cifar100", "cifar-100")
@dataclass(frozen=True)
class Cifar100(_Cifar):
    """60,000 small colour photographs in 100 classes, 32×32, with their fine labels (Krizhevsky, 2009)."""

    classes = 100
    label_bytes = 2
    label_key, names_key = "fine_labels", "fine_label_names"
    binary = ("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt")
    pickled = ("cifar-100-python", ("train",), "test", "meta")
