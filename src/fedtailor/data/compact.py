"""Convert users' arrays to the compact types a federation keeps: uint8, integers, float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedtailor.data.task import Kind
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes, check_count

Array = np.ndarray | Tensor


def as_samples(x: Array, where: str) -> np.ndarray:
    """Convert samples to a compact type, images to channels first; `where` names them in errors."""
    found = as_type(_numpy(x, where), where)
    if found.ndim < 2:
        raise FedTailorError(f"{where} has shape {found.shape}: expected one row per sample, such as (n, features).")
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
    """Return the array itself if its type is compact, else convert it; refuse types that cannot be samples."""
    kind, size = x.dtype.kind, x.dtype.itemsize
    if x.dtype in (np.uint8, np.float32) or (kind == "i" and x.dtype.isnative):
        return x
    target = {"f": "float32", "i": f"int{8 * size}", "u": "" if size == 8 else "int32" if size == 2 else "int64"}
    if target.get(kind):
        check_bytes(x.size * np.dtype(target[kind]).itemsize, where)
        with np.errstate(over="ignore"):  # infinite values are reported where samples are checked
            return np.asarray(x).astype(target[kind])
    raise FedTailorError(
        f"{where} has values of type {x.dtype}, which cannot be trained on. Convert it to float32, or to uint8 for images."
    )


def kind_of(y: Array, where: str) -> Kind:
    """Infer the task from labels: floats are regression, rows of 0 and 1 multi-label, booleans binary, the rest multi-class."""
    found = _numpy(y, where)
    if found.ndim == 2 and found.shape[1] > 1 and np.isin(found, (0, 1)).all():
        return "multilabel"
    kinds: dict[str, Kind] = {"f": "regression", "b": "binary"}
    return kinds.get(found.dtype.kind, "multiclass")


def as_labels(y: Array, where: str, kind: Kind = "multiclass") -> np.ndarray:
    """Convert labels to what a federation keeps: int64 (n,) class numbers from 0, uint8 (n, labels), or float32 (n, targets)."""
    found = _numpy(y, where)
    if kind in ("multilabel", "regression"):
        return _columns(found, where, kind)
    if found.ndim != 1:
        raise FedTailorError(f"{where} has shape {found.shape}: expected one label per sample, shape (n,).")
    if kind == "binary" and found.dtype.kind in "bf" and np.isin(found, (0, 1)).all():
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise FedTailorError(
            f"{where} has labels of type {found.dtype}: expected whole numbers from 0. Convert them, for example with "
            "np.unique(y, return_inverse=True)[1]."
        )
    if len(found) and found.min() < 0:
        raise FedTailorError(f"{where} has labels below 0 (down to {found.min()}): expected whole numbers from 0.")
    check_count(int(found.max(initial=0)) + 1, "CLASSES", where)
    if kind == "binary" and found.max(initial=0) > 1:
        raise FedTailorError(f"{where} has labels up to {found.max()}: a binary task has 0 and 1.")
    return found.astype(np.int64)


def as_weights(weight: Array, where: str) -> np.ndarray:
    """Convert the weights of samples: finite numbers that are not negative, and not all zero."""
    found = _numpy(weight, where)
    if found.ndim != 1 or found.dtype.kind not in "biuf":
        raise FedTailorError(f"{where} must be one number per sample.")
    found = found.astype(np.float32)
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise FedTailorError(f"{where}: weights must be finite and not negative, and some must be above 0.")
    return found


def named_labels(ys: Sequence[Array]) -> tuple[Sequence[Array], tuple[str, ...]]:
    """Turn labels that are texts into class numbers, counted over all arrays together; also return the names of the classes.

    Labels that are numbers are returned as they are, without names.
    """
    found = [_numpy(y, "y") for y in ys]
    texts = [y.dtype.kind in "USO" and y.ndim == 1 for y in found]
    if not any(texts):
        return ys, ()
    if not all(texts):
        raise FedTailorError(
            "Labels are texts at some clients and numbers at others. Name or number them alike everywhere."
        )
    names = sorted({str(value) for y in found for value in y.tolist()})
    place = {name: i for i, name in enumerate(names)}
    return [np.array([place[str(value)] for value in y.tolist()], np.int64) for y in found], tuple(names)


def classes_of(y: np.ndarray, kind: Kind) -> int:
    """Return the smallest number of classes, labels or targets that fits these labels."""
    if kind == "binary":
        return 2
    return int(y.max(initial=0)) + 1 if kind == "multiclass" else y.shape[1]


def _columns(found: np.ndarray, where: str, kind: Kind) -> np.ndarray:
    if kind == "regression" and found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or found.dtype.kind not in "biuf" or found.shape[1] == 0:
        raise FedTailorError(
            f"{where} has labels of type {found.dtype} and shape {found.shape}: a {kind} task needs a row of numbers per sample."
        )
    check_count(found.shape[1], "CLASSES", where)
    if kind == "regression":
        with np.errstate(over="ignore"):  # infinite values are reported where labels are checked
            return found.astype(np.float32)
    if not np.isin(found, (0, 1)).all():
        raise FedTailorError(f"{where} has labels other than 0 and 1, which are those of a multi-label task.")
    return found.astype(np.uint8)


def vocabulary(x: np.ndarray) -> int:
    """Return the number of token ids, or 0 if these are not token ids."""
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
