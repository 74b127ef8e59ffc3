"""Samples that are already NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtailor.data.compact import as_samples
from fedtailor.data.npy import map_npy, read_npy
from fedtailor.data.pool import Pool, Source, sources
from fedtailor.data.sources.files import check_labels, encoded, located, token_ids, zip_members
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_count
from fedtailor.registry import option


@sources.register("arrays", "numpy", "npz")
@dataclass(frozen=True)
class Arrays(Source):
    """Your own arrays: x and y (0..C-1), and where known the client of each sample and whether it is a test sample.

    A folder of x.npy, y.npy, client.npy and test.npy is memory-mapped, so it may be larger than memory.
    """

    path: str = option(
        "", "an .npz file with x and y (and client, test), or a folder with x.npy and y.npy (and client.npy, test.npy)"
    )

    def read(self, root: Path) -> Pool:
        place = located(self.path, root, self.name)
        arrays = read_arrays(place)
        return arrays_pool(place, arrays)


def read_arrays(place: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file or of a folder of .npy files, by name."""
    if place.is_dir():
        return {file.stem: map_npy(file) for file in sorted(place.glob("*.npy"))}
    if place.suffix == ".npy":
        raise FedTailorError(f"{place} cannot be read: it is one array, where x and y were expected.")
    return {name.removesuffix(".npy"): read_npy(data, f"{place} ({name})") for name, data in zip_members(place).items()}


def arrays_pool(place: Path, arrays: dict[str, np.ndarray]) -> Pool:
    """x, y and where present client and test as a pool."""
    for name in ("x", "y"):
        if name not in arrays:
            raise FedTailorError(f"{place} has no array '{name}'. It has: {', '.join(arrays) or 'none'}.")
    x, y, client, test = arrays["x"], arrays["y"], arrays.get("client"), arrays.get("test")
    x = as_samples(x, f"{place}: x")
    for name, column in (("y", y), ("client", client), ("test", test)):
        if column is not None and column.shape != (len(x),):
            raise FedTailorError(f"{place}: {name} has shape {column.shape}, but x has {len(x)} samples.")
    if y.dtype.kind not in "iu":
        raise FedTailorError(f"{place}: y must be whole numbers from 0, but is of type {y.dtype}.")
    classes = int(y.max(initial=0)) + 1
    check_count(classes, "CLASSES", f"{place}: y")
    check_labels(y, classes, place)
    owner, owners = (None, ()) if client is None else encoded(client.tolist())
    channels = x.shape[1] if x.ndim == 4 else 1
    return Pool(
        x,
        y.astype(np.int64),
        classes,
        owner=owner,
        owners=owners,
        test=None if test is None else _flags(test, place),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        vocabulary=token_ids(x, place),
    )


def _flags(test: np.ndarray, place: Path) -> np.ndarray:
    if test.dtype.kind not in "biuf" or not np.isin(test, (0, 1)).all():
        raise FedTailorError(f"{place}: test must be true or false (or 1 or 0) for each sample.")
    return test.astype(bool)
