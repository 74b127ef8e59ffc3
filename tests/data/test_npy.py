"""The .npy format: what a header promises is looked for before it is believed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data.npy import map_npy, read_npy
from fedtailor.errors import FedTailorError

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: np.ndarray, shape: str = "") -> bytes:
    """The bytes of an .npy file, whose header may name another shape in the same room."""
    stream = io.BytesIO()
    np.save(stream, array)
    data = stream.getvalue()
    if not shape:
        return data
    said, there = f"'shape': {shape}, }}".encode(), f"'shape': {array.shape}, }}".encode()
    return data.replace(there + b" " * (len(said) - len(there)), said)


@pytest.mark.parametrize("array", [A, np.asfortranarray(A), A[0], np.array(["a", "bc"]), A.astype(">f8"), np.array(3)])
def test_what_numpy_writes_is_read(tmp_path: Path, array: np.ndarray) -> None:
    np.testing.assert_array_equal(read_npy(npy(array), "f.npy"), array)
    (tmp_path / "f.npy").write_bytes(npy(array))
    mapped = map_npy(tmp_path / "f.npy")
    np.testing.assert_array_equal(mapped, array)
    assert isinstance(mapped, np.memmap)


@pytest.mark.parametrize("shape", ["(2, 9)", "(1099511627776,)", "(-2, -3)", "(2, True)", "(4611686018427387904, 9)"])
def test_a_lying_header_is_refused_before_memory_is_taken(tmp_path: Path, shape: str) -> None:
    data = npy(A, shape)
    assert shape.encode() in data
    (tmp_path / "f.npy").write_bytes(data)
    for read in (lambda: read_npy(data, "f.npy"), lambda: map_npy(tmp_path / "f.npy")):
        with pytest.raises(FedTailorError, match=r"f\.npy is damaged or not an \.npy file"):
            read()


def test_neither_objects_nor_other_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(FedTailorError, match="pickled Python objects, which are never loaded"):
        read_npy(npy(np.array([{}], dtype=object)), "f.npy")
    np.savez(tmp_path / "x", x=A)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(FedTailorError, match=r"x\.npy is damaged or not an \.npy file"):
        map_npy(tmp_path / "x.npy")
    np.save(tmp_path / "e.npy", A[:0])
    with pytest.raises(FedTailorError, match=r"e\.npy holds an empty array"):
        map_npy(tmp_path / "e.npy")
