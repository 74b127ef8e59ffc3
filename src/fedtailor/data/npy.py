"""Read NumPy's .npy format safely: the size in the header is compared with the file before memory is allocated."""

from __future__ import annotations

import io
import math
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from fedtailor.errors import FedTailorError

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class Header:
    """The parsed header: an array of this shape, order and type follows at byte `start`."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int

    @property
    def order(self) -> Literal["C", "F"]:
        return "F" if self.fortran else "C"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: BinaryIO, size: int, origin: str) -> Header:
    """Read the header of a file of `size` bytes; refuse a file too short for its array. `origin` names it in errors."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _READERS:
            raise ValueError(f"unknown version {version}")
        shape, fortran, dtype = _READERS[version](stream)
        if not all(type(side) is int and side >= 0 for side in shape) or len(shape) > 32:
            raise ValueError(f"impossible shape of length {len(shape)}")
        header = Header(shape, bool(fortran), dtype, stream.tell())
    except (ValueError, TypeError, EOFError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError) as error:
        raise FedTailorError(f"{origin} is damaged or not an .npy file ({error}).") from None
    except RecursionError:
        raise FedTailorError(f"{origin} is damaged or not an .npy file (its header is nested without end).") from None
    if not dtype.hasobject and header.nbytes > size - header.start:
        raise FedTailorError(
            f"{origin} is damaged or not an .npy file (it promises {shape} values of {dtype}, {header.nbytes:,} bytes, but has "
            f"{size - header.start:,})."
        )
    return header


def read_npy(data: bytes, origin: str) -> np.ndarray:
    """Return the array in an .npy file's bytes, without copying them."""
    header = read_header(io.BytesIO(data), len(data), origin)
    _refuse_objects(header, origin)
    return np.ndarray(header.shape, header.dtype, data, header.start, order=header.order)


def map_npy(file: Path) -> np.ndarray:
    """Memory-map the array in an .npy file."""
    try:
        with file.open("rb") as stream:
            header = read_header(stream, file.stat().st_size, str(file))
            _refuse_objects(header, str(file))
            if not header.nbytes:
                raise FedTailorError(f"{file} holds an empty array of shape {header.shape}.")
            return np.memmap(stream, header.dtype, "r", header.start, header.shape, header.order)
    except (OSError, ValueError) as error:
        raise FedTailorError(f"{file} cannot be read ({error}).") from None


def _refuse_objects(header: Header, origin: str) -> None:
    if header.dtype.hasobject:
        raise FedTailorError(f"{origin} holds pickled Python objects, which are never loaded.")
