"""Read a received array in NumPy's format: the header is matched, never evaluated, and checked against the data before any copy."""

from __future__ import annotations

import math
import re

import numpy as np

DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")  # of tensors that may travel
HEADER = re.compile(
    rb"\{'descr': '([|<][a-z]\d)', 'fortran_order': False, 'shape': \(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), \} *\n"
)
LONGEST = 1024  # bytes of a header
START = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}  # magic and version -> bytes of the header's length


def read_npy(data: bytes) -> np.ndarray:
    """Return a new array; a ValueError says what is wrong with the bytes."""
    width = START.get(data[:8])
    if width is None:
        raise ValueError("not a NumPy array of version 1 or 2")
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    if length > LONGEST:
        raise ValueError(f"a header of {length:,} bytes")
    match = HEADER.fullmatch(data[start : start + length])
    if match is None or match[1].decode() not in DTYPES:
        raise ValueError("a header that no array to be sent has")
    dtype = np.dtype(match[1].decode())
    shape = tuple(int(n) for n in match[2].split(b",") if n.strip())
    values = memoryview(data)[start + length :]
    if math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"{len(values):,} bytes for {dtype} values of shape {shape}")
    return np.frombuffer(values, dtype).reshape(shape).copy()
