"""The pickle reader agrees with pickle on data, and runs nothing."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.pickles import read_object_npy, read_pickle
from fedtailor.errors import FedTailorError

A = np.arange(6, dtype="f4").reshape(2, 3)
SAMPLES = {
    "plain": {
        "a": 1,
        "b": [True, None, 1.5, "é", b"", b"a\xff", -(10**30), (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        7: {},
    },
    "sets": [{1, 2}, frozenset(["x"]), set(), bytearray(b"xy"), bytearray()],
    "arrays": [
        A,
        A,
        A.T,
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.zeros((0, 3)),
        np.array(3),
        np.array(True),
    ],
    "types": [
        np.array(["ab", "é"]),
        np.array([b"x", b"yz"]),
        np.arange(3, dtype=">i4"),
        np.array([1j], "c8"),
        np.arange(3, dtype="f2"),
    ],
    "scalars": [np.float32(3), np.int64(-4), np.bool_(True), np.dtype("u2")],
    "objects": np.array([[{"q": A}], [None]], object),
    "many": list(range(70_000)),
}


def same(found: object, expected: object) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        alike = found.shape == expected.shape and found.dtype == expected.dtype
        return alike and all(map(same, found.ravel().tolist(), expected.ravel().tolist()))
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(map(same, found.values(), expected.values()))  # type: ignore[call-overload, attr-defined]
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))  # type: ignore[arg-type, call-overload]
    return found == expected


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("sample", SAMPLES)
def test_agrees_with_pickle(sample: str, protocol: int) -> None:
    assert same(read_pickle(pickle.dumps(SAMPLES[sample], protocol), "f"), SAMPLES[sample])


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(plain, st.integers(0, 5))
def test_agrees_with_pickle_on_anything_plain(value: object, protocol: int) -> None:
    assert same(read_pickle(pickle.dumps(value, protocol), "f"), value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_streams_give_an_error_or_a_value_never_a_traceback(data: st.DataObject) -> None:
    stream = bytearray(pickle.dumps({"x": A, "y": [1, b"z", {2}]}, data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FedTailorError):
        read_pickle(bytes(stream), "f")


def test_shared_values_stay_shared() -> None:
    inner = [1]
    found = read_pickle(pickle.dumps([inner, inner, A, A]), "f")
    assert found[0] is found[1]
    assert found[2] is found[3]


NO_FIELDS = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"  # the end of a simple dtype's state


def python2_batch(pixels: bytes, labels: list[int]) -> bytes:
    """A CIFAR batch as Python 2 wrote it: protocol 2, every string a byte string, the array's bytes too."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    dtype = b"cnumpy\ndtype\nq\x05" + text(b"u1") + b"K\x00K\x01\x87Rq\x06(K\x03" + text(b"|") + NO_FIELDS
    shape = b"M" + struct.pack("<H", len(labels)) + b"M" + struct.pack("<H", len(pixels) // len(labels)) + b"\x86"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85" + text(b"b") + b"\x87Rq\x04(K\x01"
    )
    array += shape + dtype + b"\x89" + text(pixels) + b"tb"
    listed = b"]q\x08(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}q\x01("
        + text(b"data")
        + array
        + text(b"labels")
        + listed
        + text(b"batch_label")
        + text(b"one of 5")
        + b"u."
    )


def test_python2_batch() -> None:
    pixels = bytes(range(256)) * 12
    found = read_pickle(python2_batch(pixels * 2, [3, 9]), "f")
    assert found["labels"] == [3, 9]
    assert found["data"].dtype == np.uint8
    assert found["data"].tobytes() == pixels * 2
    assert found["data"].shape == (2, 3072)
    assert found["batch_label"] == "one of 5"


class Harm:
    def __init__(self, call: object, *arguments: object) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> tuple:
        return self.reduced


def quoted(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def streams(command: str) -> dict[str, bytes]:
    shell, given = b"cposix\nsystem\n", quoted(command)
    return {
        "GLOBAL REDUCE": b"\x80\x02" + shell + given + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04" + quoted("posix") + quoted("system") + b"\x93" + given + b"\x85R.",
        "INST": b"(" + given + b"iposix\nsystem\n.",
        "OBJ": b"(" + shell + given + b"o.",
        "NEWOBJ": b"\x80\x02" + shell + given + b"\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04" + shell + given + b"\x85}\x92.",
        "NEWOBJ of a known name": b"\x80\x02cnumpy\nndarray\n(K\x01t\x81.",
        "BUILD with a state": b"\x80\x02cfunctools\npartial\n)\x81(" + shell + given + b"\x85}Ntb.",
        "BUILD of a dict": b"\x80\x02}(" + quoted("__setstate__") + shell + b"u" + given + b"b.",
        "BUILD of a name": b"\x80\x02cnumpy\ndtype\n}b.",
        "call of a value": b"\x80\x02K\x01)R.",
        "call in a list": pickle.dumps([1, Harm(os.system, command)]),
        "in an object array": pickle.dumps(np.array([Harm(os.system, command)], object)),
        "eval": pickle.dumps(Harm(eval, f"__import__('os').system({command!r})")),
        "getattr": pickle.dumps(Harm(getattr, "", "join")),
        "another codec": b"\x80\x02c_codecs\nencode\n" + quoted("a") + quoted("rot13") + b"\x86R.",
        "dotted name": b"\x80\x04" + quoted("numpy") + quoted("ndarray.tofile") + b"\x93.",
        "path of numpy": b"\x80\x04" + quoted("numpy.core") + quoted("multiarray.scalar.__class__") + b"\x93.",
        "runstring": b"\x80\x04" + quoted("numpy.testing._private.utils") + quoted("runstring") + b"\x93.",
        "PERSID": b"P" + command.encode() + b"\n.",
        "EXT1": b"\x80\x02\x82\x01.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "datetime": pickle.dumps(np.array(["2020-01-01"], "M8[D]"), 2),
    }


@pytest.mark.parametrize("name", streams(""))
def test_nothing_is_executed(name: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "executed"
    with pytest.raises(FedTailorError, match=r"file\.bin"):
        read_pickle(streams(f"touch {sentinel}")[name], "file.bin")
    assert not sentinel.exists()


def test_the_refused_name_is_told() -> None:
    with pytest.raises(FedTailorError, match=r"a/b\.pkl was refused: it asks for 'posix\.system'"):
        read_pickle(pickle.dumps(os.system), "a/b.pkl")


@pytest.mark.parametrize("protocol", range(6))
def test_every_truncation_is_refused(protocol: int) -> None:
    stream = pickle.dumps({"x": A, "y": [1, 2, "three"]}, protocol)
    for end in range(len(stream)):
        with pytest.raises(FedTailorError):
            read_pickle(stream[:end], "f")


MALFORMED = {
    "empty": b"",
    "no result": b".",
    "huge string": b"\x80\x02T\xff\xff\xff\x7fabc.",
    "huge bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.",
    "huge bytearray": b"\x80\x05\x96" + b"\xff" * 7 + b"\x7fabc.",
    "huge integer": b"\x8b\xff\xff\xff\x7f\x01.",
    "long decimal": b"L" + b"9" * 100_000 + b"L\n.",
    "unknown memo": b"h\x07.",
    "memo of nothing": b"q\x00.",
    "append to a number": b"K\x01K\x02a.",
    "append below the mark": b"](K\x01(ae.",
    "odd dict": b"(K\x01d.",
    "unhashable key": b"(]K\x01d.",
    "deep key": b")" + b"\x85" * 50_000 + b"K\x01" + b"}" + b"(" + b")" + b"\x85" * 50_000 + b"K\x01u.",
    "unbuilt array": pickle.dumps(A, 2).split(b"Rq\x09")[0] + b"R.",
    "name as a result": b"cnumpy\ndtype\n.",
    "name in a list": b"]cnumpy\ndtype\na.",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    with pytest.raises(FedTailorError, match="f is damaged"):
        read_pickle(MALFORMED[name], "f")


def array_stream(code: str, shape: bytes, raw: bytes) -> bytes:
    dtype = b"cnumpy\ndtype\n" + quoted(code) + b"\x89\x88\x87R(K\x03" + quoted("|") + NO_FIELDS
    start = b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01"
    return start + shape + dtype + b"\x89" + raw + b"tb."


@pytest.mark.parametrize(
    ("code", "shape", "raw"),
    [
        ("u1", b"J\xff\xff\xff\x7f\x85", b"C\x01a"),  # claims 2 GB
        ("u1", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x87", b"C\x01a"),
        ("u1", b"J\xff\xff\xff\xff\x85", b"C\x01a"),  # negative
        ("u1", b"K\x01\x85", b"C\x02ab"),  # too many bytes
        ("V0", b"J\xff\xff\xff\x7f\x85", b"C\x00"),
        ("O8", b"K\x01\x85", b"C\x08abcdefgh"),  # bytes as pointers
        ("O8", b"J\xff\xff\xff\x7f\x85", b"]"),
        ("u1", b"K\x01\x85", b"]K\x01a"),
        ("f4,f4", b"K\x01\x85", b"C\x08abcdefgh"),
        ("u1", b"K\x01\x85", quoted("☃")),
    ],
)
def test_arrays_that_lie(code: str, shape: bytes, raw: bytes) -> None:
    with pytest.raises(FedTailorError):
        read_pickle(array_stream(code, shape, raw), "f")


def test_arrays_that_do_not_lie() -> None:
    assert read_pickle(array_stream("u1", b"K\x02\x85", b"C\x02ab"), "f").tolist() == [97, 98]


@pytest.mark.parametrize(
    "call", [b"c_codecs\nencode\nh\x00" + quoted("latin1") + b"\x86R", b"c__builtin__\nset\nh\x01\x85R"]
)
def test_memory_bombs(call: bytes) -> None:
    """Copies of one remembered value cannot add up to more than the stream itself."""
    start = quoted("x" * 10_000) + b"q\x000](" + b"K\x01" * 10_000 + b"eq\x010]("
    with pytest.raises(FedTailorError, match="unfolds"):
        read_pickle(b"\x80\x02" + start + call * 1000 + b"e.", "f")


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "array",
    [np.array({"x": A, "y": [1]}, object), np.array([None, "a"], object), A, A.T, A[:0], np.array(1)],
)
def test_npy(array: np.ndarray) -> None:
    assert same(read_object_npy(npy(array), "f"), array)


@pytest.mark.parametrize("array", [np.array({"x": A}, object), A])
def test_truncated_npy(array: np.ndarray) -> None:
    whole = npy(array)
    for end in range(len(whole)):
        with pytest.raises(FedTailorError, match=r"f\.npy"):
            read_object_npy(whole[:end], "f.npy")


def test_npy_with_a_damaged_header() -> None:
    for damaged in (npy(A).replace(b"{", b"|"), npy(A).replace(b"(2, 3)", b"(2, 9)"), npy(A).replace(b"<f4", b"<q4")):
        with pytest.raises(FedTailorError, match="damaged or not an"):
            read_object_npy(damaged, "f.npy")


def test_npy_runs_nothing(tmp_path: Path) -> None:
    sentinel = tmp_path / "executed"
    with pytest.raises(FedTailorError, match=r"posix\.system"):
        read_object_npy(npy(np.array(Harm(os.system, f"touch {sentinel}"), object)), "f.npy")
    assert not sentinel.exists()
