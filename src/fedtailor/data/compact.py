"""Arrays as people have them, made into the compact types a federation keeps: uint8, whole numbers, float32."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes, check_count

Array = np.ndarray | Tensor


def as_samples(x: Array, where: str) -> np.ndarray:
    """Samples in a compact type, images with channels first; `where` names them in a complaint."""
    found = as_type(_numpy(x, where), where)
    if found.ndim < 2:
        raise FedTailorError(f"{where} has shape {found.shape}: expected one row a sample, such as (n, features).")
    if 0 in found.shape[1:]:
        raise FedTailorError(f"{where} has shape {found.shape}: its samples hold nothing.")
    if found.dtype == np.uint8:
        return _channels_first(found)
    if found.dtype.kind == "i":
        if found.ndim != 2:
            raise FedTailorError(
                f"{where} has {found.dtype} values of shape {found.shape}. Images must be uint8 (0 to 255) or floats; whole numbers are "
                "taken as token ids of shape (n, length)."
            )
        if found.size and found.min() < 0:
            raise FedTailorError(
                f"{where} has whole numbers below 0 (down to {found.min()}). Whole numbers are taken as token ids; turn measurements into "
                "floats with x.astype('float32')."
            )
    return found


def as_type(x: np.ndarray, where: str) -> np.ndarray:
    """The array itself if its type is compact, else converted; what cannot be samples is refused."""
    kind, size = x.dtype.kind, x.dtype.itemsize
    if x.dtype in (np.uint8, np.float32) or (kind == "i" and x.dtype.isnative):
        return x
    target = {"f": "float32", "i": f"int{8 * size}", "u": "" if size == 8 else "int32" if size == 2 else "int64"}
    if target.get(kind):
        check_bytes(x.size * np.dtype(target[kind]).itemsize, where)
        with np.errstate(over="ignore"):  # what becomes infinite is told of where samples are checked
            return np.asarray(x).astype(target[kind])
    raise FedTailorError(
        f"{where} has values of type {x.dtype}, which cannot be trained on. Convert it to float32, or to uint8 for images."
    )


def as_labels(y: Array, where: str) -> np.ndarray:
    """Labels as int64, one a sample, from 0."""
    found = _numpy(y, where)
    if found.ndim != 1:
        raise FedTailorError(f"{where} has shape {found.shape}: expected one label a sample, shape (n,).")
    if found.dtype.kind not in "iu":
        raise FedTailorError(
            f"{where} has labels of type {found.dtype}: expected whole numbers from 0. Convert them, for example with "
            "np.unique(y, return_inverse=True)[1]."
        )
    if len(found) and found.min() < 0:
        raise FedTailorError(f"{where} has labels below 0 (down to {found.min()}): expected whole numbers from 0.")
    check_count(int(found.max(initial=0)) + 1, "CLASSES", where)
    return found.astype(np.int64)


def vocabulary(x: np.ndarray) -> int:
    """How many token ids there are, or 0 if these are not token ids."""
    return int(x.max()) + 1 if x.dtype.kind == "i" and x.size else 0


def _channels_first(x: np.ndarray) -> np.ndarray:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        return np.moveaxis(x, 3, 1)
    return x


def _numpy(values: Array, where: str) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return values.float().numpy() if values.is_floating_point() else values.numpy()
    try:
        return np.asanyarray(values)  # a memory map stays one
    except ValueError:
        raise FedTailorError(f"{where} is not an array: its rows differ in length.") from None
