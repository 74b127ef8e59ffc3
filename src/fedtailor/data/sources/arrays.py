"""Samples that are already NumPy arrays."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedtailor.data.compact import as_labels, as_samples, as_weights, classes_of, kind_of, named_labels
from fedtailor.data.npy import map_npy, read_npy
from fedtailor.data.pool import Pool, Source, data_root, sources
from fedtailor.data.sources.files import TASK, check_labels, encoded, located, token_ids, zip_members
from fedtailor.data.task import CLASSES, Kind
from fedtailor.errors import FedTailorError
from fedtailor.registry import option


@sources.register("arrays", "numpy", "npz")
@dataclass(frozen=True)
class Arrays(Source):
    """Your own arrays: x and y, and where known the client of each sample, whether it is a test sample, and its weight.

    A folder of x.npy, y.npy, client.npy, test.npy and weight.npy is memory-mapped, so it may be larger than memory.
    """

    path: str = option(
        "", "an .npz file with x and y (and client, test, weight), or a folder with x.npy and y.npy (and client.npy …)"
    )
    task: Literal["auto", "multiclass", "binary", "multilabel", "regression"] = option("auto", TASK)

    def read(self, root: Path) -> Pool:
        place = located(self.path, root, self.name)
        return arrays_pool(place, read_arrays(place), self.task)

    @property
    def fitting_partition(self) -> str:
        if self._names_clients():
            return "natural"
        return "dirichlet" if self.task in ("auto", *CLASSES) else "iid"

    def _names_clients(self) -> bool:
        """Return whether there is an array of clients, without reading any; a file that cannot be read is reported where it is read."""
        try:
            place = located(self.path, data_root(), self.name)
            names = os.listdir(place) if place.is_dir() else zipfile.ZipFile(place).namelist()
        except (FedTailorError, OSError, zipfile.BadZipFile):
            return False
        return "client.npy" in names


def read_arrays(place: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file or of a folder of .npy files, by name."""
    if place.is_dir():
        return {file.stem: map_npy(file) for file in sorted(place.glob("*.npy"))}
    if place.suffix == ".npy":
        raise FedTailorError(f"{place} cannot be read: it is one array, where x and y were expected.")
    return {name.removesuffix(".npy"): read_npy(data, f"{place} ({name})") for name, data in zip_members(place).items()}


def arrays_pool(place: Path, arrays: dict[str, np.ndarray], task: Kind | Literal["auto"] = "auto") -> Pool:
    """Make a pool of x, y and, if present, client, test and weight."""
    for name in ("x", "y"):
        if name not in arrays:
            raise FedTailorError(f"{place} has no array '{name}'. It has: {', '.join(arrays) or 'none'}.")
    x, y, client, test = arrays["x"], arrays["y"], arrays.get("client"), arrays.get("test")
    weight = arrays.get("weight")
    x = as_samples(x, f"{place}: x")
    for name, column in (("y", y), ("client", client), ("test", test), ("weight", weight)):
        if column is not None and column.shape[: 2 if name != "y" else 1] != (len(x),):
            raise FedTailorError(f"{place}: {name} has shape {column.shape}, but x has {len(x)} samples.")
    if not len(x):
        raise FedTailorError(f"{place} holds no samples.")
    (found,), labels = named_labels([y])
    kind = kind_of(found, f"{place}: y") if task == "auto" else task
    if kind == "multiclass" and y.dtype.kind in "iu":
        check_labels(y, int(y.max()) + 1, place)
    y = as_labels(found, f"{place}: y", kind)
    owner, owners = (None, ()) if client is None else encoded(client.tolist())
    channels = x.shape[1] if x.ndim == 4 else 1
    return Pool(
        x,
        y,
        classes_of(y, kind),
        owner=owner,
        owners=owners,
        test=None if test is None else _flags(test, place),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        vocabulary=token_ids(x, place),
        kind=kind,
        labels=labels,
        keep_split=test is not None,
        weight=None if weight is None else as_weights(weight, f"{place}: weight"),
    )


def _flags(test: np.ndarray, place: Path) -> np.ndarray:
    if test.dtype.kind not in "biuf" or not np.isin(test, (0, 1)).all():
        raise FedTailorError(f"{place}: test must be true or false (or 1 or 0) for each sample.")
    return test.astype(bool)
