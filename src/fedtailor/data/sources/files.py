"""What every reader does with a file: find it, read it, and check its labels, with errors that name it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.errors import FedTailorError


def located(path: str, root: Path, source: str) -> Path:
    """The existing file or folder called `path`: as it is, else below the data root."""
    if not path:
        raise FedTailorError(
            f"The data source '{source}' needs to know where the data is: set data.path to a file or folder."
        )
    given = Path(path).expanduser()
    for place in (given, root / given):
        if place.exists():
            return place
    below = "" if given.is_absolute() else f" (looked in {Path.cwd()} and {root})"
    raise FedTailorError(f"data.path = '{path}' does not exist{below}.")


def file_bytes(path: Path) -> bytes:
    """The whole of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedTailorError(f"{path} cannot be read ({error.strerror or error}).") from None


def check_labels(labels: np.ndarray, classes: int, origin: Path) -> None:
    """Refuse labels outside 0..classes-1, naming the file they came from."""
    if len(labels) == 0:
        raise FedTailorError(f"{origin} holds no samples.")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise FedTailorError(
            f"{origin}: sample {wrong[0]} has label {labels[wrong[0]]}, but labels must lie in 0..{classes - 1}. The file is damaged "
            "or of another data set."
        )


def token_ids(x: np.ndarray, origin: Path) -> int:
    """How many token ids there are, where samples are rows of whole numbers; 0 for bytes (pixels) and measurements."""
    if x.dtype.kind not in "iu" or x.dtype == np.uint8:
        return 0
    if x.size and x.min() < 0:
        raise FedTailorError(f"{origin}: token ids must not be negative, but the smallest is {x.min()}.")
    return int(x.max(initial=0)) + 1


def encoded(values: Sequence[Any]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Values of any kind as 0..C-1 in sorted order, numbers before words and as numbers, and the C names."""
    ordered = sorted(set(values), key=_rank)
    position = {value: i for i, value in enumerate(ordered)}
    return np.array([position[value] for value in values], np.int64), tuple(str(value) for value in ordered)


def _rank(value: Any) -> tuple[bool, float, str]:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return (False, number, str(value)) if math.isfinite(number) else (True, 0.0, str(value))
