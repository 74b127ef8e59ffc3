"""Arrays of another party: read to the bit, or refused before anything is allocated."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest

from fedtailor.engines.flower.npy import DTYPES, read_npy


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_header(text: str, values: bytes = bytes(16), version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text.encode() + values


def header(descr: str = "'<f4'", order: str = "False", shape: str = "(4,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0, 7), (1, 1, 1, 5)])
def test_what_numpy_saves_is_read_to_the_bit(dtype, shape):
    sent = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    got = read_npy(saved(sent))
    assert (got.dtype, got.shape) == (sent.dtype, shape)
    assert got.tobytes() == sent.tobytes()
    assert got.flags.writeable


def test_a_longer_header_of_version_2_is_read():
    assert read_npy(with_header(header(), version=b"\x02\x00")).shape == (4,)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a NumPy array"),
        (pickle.dumps([1.0]), "not a NumPy array"),
        (b"PK\x03\x04" + bytes(100), "not a NumPy array"),
        (with_header(header(), version=b"\x03\x00"), "not a NumPy array"),
        (with_header(" " * 2000 + header()), "a header of"),
        (with_header(header("'|O'")), "a header that"),
        (with_header(header("'V8'")), "a header that"),
        (with_header(header("'>f4'")), "a header that"),
        (with_header(header("[('a', '<f4')]")), "a header that"),
        (with_header(header(order="True")), "a header that"),
        (with_header(header(shape="(-4,)")), "a header that"),
        (with_header(header(shape="(" * 200)), "a header that"),
        (with_header(header(shape="(4,) * 10**9")), "a header that"),
        (with_header(header(shape="(1000000000000,)")), "16 bytes for float32 values"),
        (with_header(header(), bytes(17)), "17 bytes for"),
        (with_header(header(), bytes(15)), "15 bytes for"),
        (with_header(header())[:30], "a header that"),
        (with_header(header(shape="(0, 999999999999999999, 999999999999999999)"), b""), "."),
    ],
)
def test_anything_else_is_refused(data, said):
    with pytest.raises(ValueError, match=said):
        read_npy(data)
