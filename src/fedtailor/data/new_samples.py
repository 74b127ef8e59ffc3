"""Read new samples, which have no labels, as a description says: for a model that is trained already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedtailor.data.compact import as_samples
from fedtailor.data.description import FIRST, PADDING, UNKNOWN, Description
from fedtailor.data.images import SUFFIXES, read_image
from fedtailor.data.npy import map_npy
from fedtailor.data.raw_table import raw_rows
from fedtailor.data.sources.arrays import read_arrays
from fedtailor.data.sources.table import read_table
from fedtailor.data.sources.text import TextCsv, read_texts, tokens
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes


@dataclass(frozen=True)
class NewSamples:
    """Raw samples (see `description`), the files they were read from where each has one, and what is unusual about them."""

    x: np.ndarray
    files: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)


def new_samples(data: Any, description: Description, source: object = None) -> NewSamples:
    """Read samples from a file, a folder, a data frame, a list of texts or of image files, or an array.

    `source` is the data source of the run, whose columns (of texts) and `size` (of images) also hold for new samples.
    """
    if isinstance(data, np.ndarray | Tensor) and description.source != "table":
        if not (isinstance(data, np.ndarray) and data.dtype.kind in "UO"):
            return NewSamples(_checked(data, description, "the array"))
        data = data.tolist()
    place = _place(data)
    match description.source:
        case "table":
            return _table(data if place is None else read_table(place), description, str(place or "the table"))
        case "text" if place is None or _is_text(place):
            return _texts(data if place is None else read_texts(place, named_columns(source)), description)
        case "images" if place is None or not _holds_arrays(place):
            files = _image_files(place) if place is not None else [Path(file) for file in _listed(data, "image files")]
            return _images(files, description, getattr(source, "size", 0))
    if place is None:
        raise FedTailorError(
            f"New samples are an array or the path of an .npz file, but these are of type {type(data).__name__}."
        )
    return NewSamples(_checked(_array(place), description, str(place)))


def named_columns(source: object) -> tuple[str, ...]:
    """Return the label's and the texts' columns that a source of texts was given; empty if their file names none."""
    return source.named_columns() if isinstance(source, TextCsv) else ()


def _place(data: Any) -> Path | None:
    if not isinstance(data, str | PathLike):
        return None
    place = Path(os.path.expanduser(data))
    if not os.path.exists(place):
        raise FedTailorError(f"The data '{data}' does not exist: expected the path of a file or folder.")
    return place


def _is_text(place: Path) -> bool:
    return place.suffix not in (".npz", ".npy") and not place.is_dir()


def _holds_arrays(place: Path) -> bool:
    return place.suffix in (".npz", ".npy") or (place / "x.npy").exists()


def _listed(data: Any, what: str) -> Sequence[str]:
    try:
        found = list(data)
    except TypeError:
        found = [data]
    strange = next((item for item in found if not isinstance(item, str | PathLike)), None)
    if strange is not None:
        raise FedTailorError(f"Expected a list of {what}, but an entry is of type {type(strange).__name__}.")
    if not found:
        raise FedTailorError(f"There are no {what}: the list is empty.")
    return found


def _table(frame: Any, description: Description, origin: str) -> NewSamples:
    if not hasattr(frame, "columns"):
        raise FedTailorError(f"A table is a data frame or the path of a file, not a {type(frame).__name__}.")
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    twice = [column.name for column in description.columns if (frame.columns == column.name).sum() > 1]
    if twice:
        raise FedTailorError(f"{origin} has more than one column '{twice[0]}'. Give each its own name.")
    if frame.empty:
        raise FedTailorError(f"{origin} has no rows.")
    raw, warnings = raw_rows(frame, description, origin)
    return NewSamples(raw, warnings=warnings)


def _texts(texts: Any, description: Description) -> NewSamples:
    ids = {token: i for i, token in enumerate(description.tokens, start=FIRST)}
    listed, length = _listed(texts, "texts"), description.shape[0]
    check_bytes(4 * len(listed) * length, f"{len(listed):,} texts of {length:,} tokens")
    x = np.full((len(listed), length), PADDING, np.int32)
    for row, text in zip(x, listed, strict=True):
        found = tokens(str(text))[:length]
        row[: len(found)] = [ids.get(token, UNKNOWN) for token in found]
    strange = int((x < FIRST).all(axis=1).sum())
    warnings = [f"{strange} of {len(x)} texts have no word that training had."] if strange else []
    return NewSamples(x, warnings=warnings)


def _image_files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    files = (Path(at, name) for at, _, names in os.walk(place) for name in names)
    found = sorted(f for f in files if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))
    if not found:
        raise FedTailorError(f"{place} holds no images. Image files end in {', '.join(SUFFIXES)}.")
    return found


def _images(files: Sequence[Path], description: Description, size: int) -> NewSamples:
    channels, height, width = description.shape
    if channels not in (1, 3):
        raise FedTailorError(f"The model reads samples of {channels} channels, which no image file has: give an array.")
    x = np.empty((len(files), *description.shape), np.uint8)
    resized = 0
    for i, file in enumerate(files):
        image = read_image(file, size, channels)
        if image.shape[1:] != (height, width):
            if height != width:
                found = f"{image.shape[2]}×{image.shape[1]}"
                raise FedTailorError(f"{file} is {found} pixels, but the model reads {width}×{height}: resize it.")
            image, resized = read_image(file, height, channels), resized + 1
        x[i] = image
    warnings = [f"{resized} of {len(x)} images were resized to {width}×{height} pixels."] if resized else []
    return NewSamples(x, tuple(map(str, files)), warnings)


def _array(place: Path) -> np.ndarray:
    if place.suffix == ".npy":
        return map_npy(place)
    arrays = read_arrays(place)
    if "x" not in arrays and len(arrays) != 1:
        raise FedTailorError(f"{place} has no array 'x'. It has: {', '.join(arrays) or 'none'}.")
    return arrays.get("x", next(iter(arrays.values())))


def _checked(x: np.ndarray | Tensor, description: Description, origin: str) -> np.ndarray:
    """Refuse samples of another shape or type than those of training, or with values that no training sample may have."""
    found = as_samples(x, origin)
    kinds = [np.dtype(description.dtype), found.dtype]
    alike = kinds[0] == kinds[1] or (kinds[0].kind == kinds[1].kind != "u")
    if tuple(found.shape[1:]) != description.shape or not alike:
        raise FedTailorError(
            f"{origin} has {found.dtype} samples of shape {tuple(found.shape[1:])}, but the model reads {description.dtype} samples of "
            f"shape {description.shape}."
        )
    if not len(found):
        raise FedTailorError(f"{origin} holds no samples.")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise FedTailorError(f"{origin} has NaN or infinite values.")
    if found.dtype.kind == "i" and int(found.max()) >= description.vocabulary:
        raise FedTailorError(
            f"{origin} has token ids up to {found.max()}, but the model knows {description.vocabulary} of them."
        )
    return found
