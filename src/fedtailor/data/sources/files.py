"""Shared file reading: find a file, read no more of it than the memory limit allows, check its labels; errors name the file."""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes, check_count, limit_bytes, too_large

TASK = "what labels mean; auto: fractions are a regression, true and false binary, rows of 0 and 1 multi-label, all else classes"
GZIPPED = b"\x1f\x8b"
PIECE = 1 << 20


def located(path: str, root: Path, source: str) -> Path:
    """Return the existing file or folder at `path`: as given, else below the data root."""
    if not path:
        raise FedTailorError(
            f"The data source '{source}' needs to know where the data is: set data.path to a file or folder."
        )
    given = Path(os.path.expanduser(path))  # unlike Path.expanduser, it accepts any text
    for place in (given, root / given):
        if os.path.exists(place):
            return place
    below = "" if given.is_absolute() else f" (looked in {Path.cwd()} and {root})"
    raise FedTailorError(f"data.path = '{path}' does not exist{below}.")


def file_bytes(path: Path) -> bytes:
    """Read a whole file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device may have no end
            raise FedTailorError(f"{path} is not a file.")
        check_bytes(status.st_size, path)
        return path.read_bytes()
    except OSError as error:
        raise FedTailorError(f"{path} cannot be read ({error.strerror or error}).") from None


def unpacked_bytes(path: Path) -> bytes:
    """Read a whole file, unpacked if it is gzipped."""
    data = file_bytes(path)
    if not data.startswith(GZIPPED):
        return data
    pieces, size = [], 0
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            while piece := stream.read(PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > limit_bytes():
                    raise too_large(path, "it unpacks to more", "GB")
    except (OSError, EOFError, zlib.error) as error:
        raise FedTailorError(f"{path} is damaged: {error}. Get it again.") from None
    return b"".join(pieces)


def zip_members(path: Path) -> dict[str, bytes]:
    """Read the files in a zip archive such as an .npz, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_bytes(sum(member.file_size for member in members), path)
            for member in members:
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise FedTailorError(
                        f"{path}: '{member.filename}' is compressed in a way (number {member.compress_type}) that NumPy does not use. "
                        "Save the arrays with np.savez_compressed."
                    )
            return {member.filename: _member(archive, member) for member in members}
    except (OSError, ValueError, EOFError, LookupError, RuntimeError) as error:
        raise _not_npz(path, error) from None
    except (zipfile.BadZipFile, zlib.error, struct.error, OverflowError) as error:
        raise _not_npz(path, error) from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    # Not archive.read, which unpacks everything before it compares the size with the declared one.
    with archive.open(member) as stream:
        data = stream.read(member.file_size)
    if len(data) != member.file_size:
        raise zipfile.BadZipFile(f"'{member.filename}' is cut off")
    return data


def _not_npz(path: Path, error: Exception) -> FedTailorError:
    return FedTailorError(f"{path} cannot be read: it is cut off, damaged or not an .npz file ({error}).")


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
    """Return the number of token ids if samples are rows of whole numbers; 0 for bytes (pixels) and measurements."""
    if x.dtype.kind not in "iu" or x.dtype == np.uint8:
        return 0
    if x.size and x.min() < 0:
        raise FedTailorError(f"{origin}: token ids must not be negative, but the smallest is {x.min()}.")
    found = int(x.max(initial=0)) + 1
    check_count(found, "TOKENS", origin)
    return found


def encoded(values: Sequence[Any]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encode values of any kind as 0..C-1 in sorted order, numbers (by value) before text; also return the C names."""
    try:
        ordered = sorted(set(values), key=_rank)
    except TypeError:  # lists and the like, which a column of objects may hold
        raise FedTailorError("Labels and clients must be words or numbers, but some are lists or the like.") from None
    position = {value: i for i, value in enumerate(ordered)}
    return np.array([position[value] for value in values], np.int64), tuple(str(value) for value in ordered)


def _rank(value: Any) -> tuple[bool, float, str]:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return (False, number, str(value)) if math.isfinite(number) else (True, 0.0, str(value))
