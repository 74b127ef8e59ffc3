"""Mutations of a site's replies: of the bytes that Flower carries, of the records in them, and of a site's description."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

# -- bytes on the wire ---------------------------------------------------------------------------------------------------------------


def wired(rng: Random, reply: Message) -> Callable[[], Message]:
    """Mutate the bytes of one or more of the reply's objects; return what Flower's grid then unpacks."""
    objects = get_all_nested_objects(reply)
    contents = {id: bytearray(item.deflate()) for id, item in objects.items()}
    for _ in range(rng.randint(1, 3)):
        id = rng.choice(sorted(contents))
        rng.choice(WIRE)(rng, contents[id], contents)
    sent = {id: bytes(data) for id, data in contents.items()}
    return lambda: inflate_object_from_contents(reply.object_id, sent)  # type: ignore[return-value]


def _flip(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if data:
            data[rng.randrange(min(len(data), rng.choice((64, 300, 10**6))))] = rng.randrange(256)


def _cut(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _splice(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    other = contents[rng.choice(sorted(contents))]
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def _swap(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    data[:] = contents[rng.choice(sorted(contents))]


def _insert(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 4, 100)))


def _text(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    """Replace a word of the JSON or the head of an object by something malicious."""
    words = [
        b'"numpy.ndarray"',
        b"[0]",
        b'"float32"',
        b"payload",
        b"numbers",
        b"Array",
        b"Metric",
        b"Record",
        b"{",
        b",",
    ]
    word = rng.choice(words)
    nasty = [
        b"[" * 5000,
        b"[" + b"0," * 3000 + b"0]",
        b"[-1]",
        b"null",
        b'"\\ud800"',
        b"1" * 5000,
        b"{}",
        b"",
        b"Context ",
    ]
    at = data.find(word)
    if at >= 0:
        data[at : at + len(word)] = rng.choice(nasty)


def _bomb(rng: Random, data: bytearray, contents: dict[str, bytearray]) -> None:
    """Make an array claim to consist of its one chunk a million times."""
    for item in contents.values() if rng.random() < 0.1 else ():
        at = item.find(b'"arraychunk_ids": [0]')
        if at >= 0:
            item[at:] = b'"arraychunk_ids": [' + b"0," * (rng.choice((1, 6)) * 10**6) + b"0]}"


WIRE = (_flip, _flip, _cut, _splice, _swap, _insert, _text, _text, _bomb)


# -- records and arrays --------------------------------------------------------------------------------------------------------------


def recorded(rng: Random, reply: Message) -> Callable[[], Message]:
    """Mutate the records of a reply, also to what no typed record would hold."""
    for _ in range(rng.randint(1, 2)):
        rng.choice(RECORDS)(rng, reply.content)
    return lambda: reply


NUMBERS = (
    0,
    -1,
    1,
    29,
    30,
    31,
    2**31,
    2**63 - 1,
    2**64 - 1,
    1.5,
    30.0,
    1e300,
    -1e300,
    1e-320,
    math.nan,
    math.inf,
    -math.inf,
)
LISTS: tuple[list[Any], ...] = ([], [1], [1.0] * 3, [1.0] * 100_000, [2**60] * 1000)
TEXTS = (
    "",
    "x" * 101,
    "x" * 400_000,
    "a\nb",
    "\x1b[2J",
    "é" * 60,
    "model",
    "model ",
    "\ud800",
    "../..",
    "{}",
    "%s%n",
    "\u2028",
)
DTYPES = (
    "<f4",
    "<f8",
    "<i8",
    "|b1",
    "|u1",
    "|O",
    "O",
    "<V8",
    "<U4",
    "<M8[s]",
    "<c16",
    ">f4",
    "<f16",
    "<f2",
    "[('a', '<f4')]",
    "a\\",
    "f4",
)
SHAPES = ("(500,)", "()", "(499,)", "(1000000000000,)", "(-500,)", "(500, 0)", "(0, 10000000000000000000)", "(2, 250)", "(500)", "500",
          "[500]", "(500L,)", "(True, 500)", "(0x1f4,)", "(5e2,)", "(" * 200 + ")" * 200, "(1," * 100 + ")", "(" + "1, " * 70 + "500)",
          "(500,) + (1,)", "(" + "9" * 5000 + ",)", "(0, 0)", "(١,)", "('500',)")  # fmt: skip


def _header(rng: Random, content: RecordDict) -> None:
    """Change the header of a NumPy file."""
    descr = repr(rng.choice(DTYPES)) if rng.random() < 0.7 else "'<f4'"
    order = rng.choice(("False", "False", "True", "0", "None", "not True", "__import__('os')"))
    head = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {rng.choice(SHAPES)}, }}"
    head = rng.choice(
        (
            head,
            head,
            head[: rng.randrange(len(head))],
            head + " #",
            "{" * 500,
            head.replace("'", '"'),
            "\\\n" * 50 + head,
        )
    )
    text = head.encode("utf-8") + b" " * rng.choice((0, 10, 5000)) + b"\n"
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00", b"\x00\x01"))
    size = len(text) + rng.choice((0, 0, 0, 1, -1, 60_000))
    width = 2 if version[0] == 1 else 4
    length = (max(0, size) % 2 ** (8 * width)).to_bytes(width, "little")
    data = (
        b"\x93NUMPY" + version + length + text + rng.choice((b"", bytes(2000), bytes(2000), bytes(1999), bytes(4000)))
    )
    _put(rng, content, data)


def _npy(rng: Random, content: RecordDict) -> None:
    """Change bytes of a NumPy file, or send something else in its place."""
    entry = _entry(rng, content)
    data = bytearray(entry.data if entry is not None else b"\x93NUMPY")
    match rng.randrange(7):
        case 0 | 1:
            for _ in range(rng.choice((1, 3, 30))):
                data[rng.randrange(min(len(data), 128))] = rng.randrange(256)
        case 2:
            del data[rng.randrange(len(data)) :]
        case 3:
            data += rng.randbytes(rng.choice((1, 1000)))
        case 4:
            data[:] = rng.choice(
                (b"", b"PK\x03\x04" + rng.randbytes(40), b"PK\x05\x06", b"\x93NUMPY", rng.randbytes(200))
            )
        case 5:
            data[:] = pickle.dumps({"a": [1.0] * rng.choice((1, 1000))})
        case 6:
            data[:] = _zipped()
    _put(rng, content, bytes(data))


def _zipped() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, model=np.zeros(100_000, np.float32))
    return file.getvalue()


def _fields(rng: Random, content: RecordDict) -> None:
    """Make an array's fields contradict its bytes."""
    entry = _entry(rng, content)
    if entry is not None:
        match rng.randrange(3):
            case 0:
                entry.stype = rng.choice(("", "numpy.ndarray ", "torch", "pickle", "x" * 1000))
            case 1:
                entry.dtype = rng.choice(("object", "", "float64", "x" * 1000))
            case 2:
                entry.shape = rng.choice(((), (-1,), (2**62, 2**62), (1,) * 5000))


def _values(rng: Random, content: RecordDict) -> None:
    """Send a valid array, but not the expected one."""
    wide = rng.choice((np.zeros(500, np.float32), np.full(500, np.nan, np.float32), np.full(500, np.inf), np.zeros((500, 1)),
                       np.zeros(400_000, np.int8), np.full((), 3.0), np.zeros((1,) * 32), np.zeros(500, np.complex64),
                       np.zeros(500, np.uint16), np.asfortranarray(np.ones((25, 20))), np.zeros((0, 7)), np.zeros(500, "S3")))  # fmt: skip
    _record(content, "payload", ArrayRecord)[_name(rng, content)] = Array(wide)


def _named(rng: Random, content: RecordDict) -> None:
    """Add entries under odd names, or thousands of them."""
    record = rng.choice(("payload", "logged", "numbers"))
    filler: Any = Array(np.zeros(3, np.float32)) if record == "payload" else 1.0
    found = _record(content, record, ArrayRecord if record == "payload" else MetricRecord)
    match rng.randrange(4):
        case 0:
            found[rng.choice(TEXTS)] = filler
        case 1:
            for k in range(rng.choice((10, 199, 201, 5000))):
                found[f"{rng.choice(TEXTS[:2])}{k}"] = filler
        case 2:
            found["x" * rng.choice((100, 101, 10_000, 500_000))] = filler
        case 3:
            found.clear()


def _number(rng: Random, content: RecordDict) -> None:
    record = rng.choice(("numbers", "numbers", "logged"))
    names = ("samples", "loss", "correct", "total", "test_loss", "mu")
    value: Any = rng.choice(LISTS) if rng.random() < 0.2 else rng.choice(NUMBERS)
    found = _record(content, record, MetricRecord)
    found.__dict__["_data"][rng.choice(names)] = rng.choice((value, value, value, 10**400, True, None, "30", b"30"))


def _lost(rng: Random, content: RecordDict) -> None:
    name = rng.choice(("payload", "numbers", "logged"))
    if name in content:
        record = content[name]
        if rng.random() < 0.5 or not isinstance(record, MetricRecord | ArrayRecord) or not len(record):
            del content[name]
        else:
            del record[rng.choice(sorted(record))]


def _other(rng: Random, content: RecordDict) -> None:
    """Send a record of another kind, or one that no reply has."""
    name = rng.choice(("payload", "numbers", "logged", "more", "call", rng.choice(TEXTS)))
    content.__dict__["_data"][name] = rng.choice((
        ConfigRecord({"plain": "x" * rng.choice((1, 400_000))}),
        ConfigRecord({"plain": ["y"] * rng.choice((1, 400_000)), "empty": []}),
        MetricRecord({"a": rng.choice(LISTS)}),
        ArrayRecord({"model": Array(np.zeros(3))}),
        ConfigRecord({rng.choice(TEXTS): b"z" * rng.choice((0, 400_000))}),
        ConfigRecord({f"{k}" * 30: False for k in range(rng.choice((1, 3000)))}),
    ))  # fmt: skip


def _bare(rng: Random, content: RecordDict) -> None:
    """Put in what no typed record would hold."""
    records = [record for record in content.values() if isinstance(record, MetricRecord | ArrayRecord)]
    data = rng.choice([content, *records]).__dict__["_data"]
    data[rng.choice(("payload", "numbers", "logged", "model", "samples", "mu"))] = rng.choice(
        (None, {}, {"samples": 30}, object(), "text", [[[]]], Array(np.zeros(2)), Array("", (), "", b""), math.nan)
    )


RECORDS = (
    _header,
    _header,
    _header,
    _npy,
    _npy,
    _npy,
    _fields,
    _values,
    _named,
    _number,
    _number,
    _lost,
    _other,
    _bare,
)


def _record(content: RecordDict, name: str, kind: type) -> Any:
    if not isinstance(content.get(name), kind):
        content.__dict__["_data"][name] = kind()
    return content[name]


def _name(rng: Random, content: RecordDict) -> str:
    return rng.choice(sorted(_record(content, "payload", ArrayRecord)) or ["model"])


def _entry(rng: Random, content: RecordDict) -> Array | None:
    found = _record(content, "payload", ArrayRecord).get(_name(rng, content))
    return found if isinstance(found, Array) else None


def _put(rng: Random, content: RecordDict, data: bytes) -> None:
    record = _record(content, "payload", ArrayRecord)
    record.__dict__["_data"][_name(rng, content)] = Array("float32", (500,), "numpy.ndarray", data)


# -- descriptions --------------------------------------------------------------------------------------------------------------------

LIES: dict[str, tuple[Any, ...]] = {
    "client": (-1, 10**9, 0, 1, None, "2", True),
    "name": ("", "x" * 201, "x" * 10**6, "a\nb", "\x1b[2J", "\ud800", "clinic-0", "clinic-0-0", 5, None, "%s"),
    "train": (0, -1, 10**12, 10**9, 10**400, 1.5, None, "30", math.nan),
    "test": (-1, 10**12, 0, 10**9, None, 0.5),
    "hidden": (["labels"], ["labels"] * 10**5, ["secrets"], "labels", None, [[]], [5], ["columns", "labels"]),
    "data": (None, {}, [], 5, "table", [[]] * 10**5),
}
DATA_LIES: dict[str, tuple[Any, ...]] = {
    "format": (0, 2, None, "1", [1], True),
    "shape": (
        (),
        (0, 8, 8),
        (3, 8, 9),
        (2**20,) * 3,
        (1,) * 10**5,
        (-3, 8, 8),
        "wide",
        3,
        (3, None, 8),
        (3, 8, True),
        (9,),
        (2**27,),
    ),
    "dtype": ("object", "float32", "", "uint8 ", "nn", "__class__", None, "int8"),
    "classes": (0, -1, 3, 5, 2**34, 10**400, 4.5, math.nan, None),
    "kind": ("binary", "regression", "multilabel", "", None, "ranking", ["multiclass"], {}),
    "labels": (
        (),
        ("a", "a", "b", "c"),
        ("a",),
        ("w", "x", "y", "z"),
        ("x" * 10**6,) * 4,
        ("a\n", "b", "c", "d"),
        ("\ud800", "b", "c", "d"),
        (1, 2, 3, 4),
        "abcd",
        ("",) * 4,
        (None,) * 4,
        [f"label {k}" for k in range(300_000)],
    ),
    "label": ("", "relapse", "x" * 10**6, None, 5, "a\nb", "\x1b[2J"),
    "vocabulary": (-1, 1, 10**12, 2**70, math.inf, None),
    "tokens": (("a", "b"), ("a", "a"), [""], "ab", None, [f"{k}" for k in range(300_000)], ["x" * 10**6], [[]]),
    "mean": (
        (math.nan,) * 3,
        (1e30,) * 3,
        (-1e30, 0.5, 0.5),
        (math.inf,),
        (0.5,) * 2,
        (),
        0.5,
        (0.5,),
        (0.0,) * 3,
        ("nan",) * 3,
        (10**400,),
        (0.5,) * 10**5,
        (1.0,),
        None,
    ),
    "std": (
        (math.nan,) * 3,
        (0.0,) * 3,
        (1e-30,) * 3,
        (1e30,),
        (-0.25,) * 3,
        (0.25,) * 2,
        (),
        (0.001,),
        (1.0,),
        None,
        "1",
        (5e-324,),
    ),
    "columns": ((), None, "age", [[]], [None] * 200_000, [{}] * 10**4),
    "notes": ((), ("x" * 10**6,), None, [5], ["\x1b[2J"], ["note"] * 10**5),
}
COLUMN_LIES: dict[str, tuple[Any, ...]] = {
    "name": ("age", "", "x" * 201, "x" * 10**6, None, 5, "a\nb", "\x1b[2J", "\ud800", "stage "),
    "kind": ("number", "category", "text", None, 5, [], {}),
    "values": (
        (),
        ("I",),
        ("I", "II", "III", "IV"),
        ("III", "II", "I"),
        ("I", "I", "II"),
        "III",
        None,
        (1, 2, 3),
        ("x" * 10**6,),
        [f"{k}" for k in range(300_000)],
        [f"{k}" for k in range(90_000)],
        ("a\n",),
        ("\x1b[2J", "II", "III"),
    ),
    "mean": (math.nan, math.inf, -1e300, 1e300, 1e301, 10**400, None, "60", [60.0], True),
    "std": (math.nan, 0.0, 5e-324, 1e-300, 1e300, -1.0, math.inf, None, "1", 10**400),
    "indicator": (True, False, None, 1, "yes"),
}
PLAUSIBLE: dict[str, tuple[Any, ...]] = {  # what another honest site could say
    "name": ("stage ", "Age", "dose"),
    "values": (("I",), ("I", "II", "III", "IV"), ("III", "II", "I"), ("II", "III", "IV"), [f"{k}" for k in range(90_000)]),
    "mean": (-1e300, 1e300, 0.0),
    "std": (1e-300, 1e300, 1.0),
    "indicator": (True,),
}  # fmt: skip


def description(rng: Random, plain: dict[str, Any]) -> RecordDict:
    """Falsify a site's description, or replace it by something else."""
    for _ in range(rng.choice((1, 1, 2))):
        _lie(rng, plain)
    if rng.random() < 0.05:
        plain.pop(rng.choice(sorted(plain)))
    if rng.random() < 0.05:
        plain["more"] = rng.choice(([[]], "x" * 1000, plain.get("name")))
    text = json.dumps(rng.choice(((plain,) * 60) + ([plain], None, "site", 5, [])))
    match rng.randrange(30):
        case 0:
            text = text[: rng.randrange(len(text))]
        case 1:
            text = rng.choice(("[" * 100_000, '{"a":' * 50_000, "1" * 10_000, "NaN", "", "\ud800", "9" * 400 + ".0"))
        case 2:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(("\x00", "NaN", "}", '"', "1e999", "\\u0000", "[[[[")) + text[at + 1 :]
    record = ConfigRecord({"plain": text})
    match rng.randrange(40):
        case 0:
            return RecordDict({"site": ConfigRecord({"plain": rng.choice((5, 1.5, b"{}", [1, 2], [text], True))})})
        case 1:
            others: list[Any] = [{}, {"site": MetricRecord({"plain": 5})}, {"sites": record}, {"site": ConfigRecord()}]
            return RecordDict(rng.choice(others))
        case 2:
            return RecordDict({"site": record, "x" * 400_000: record})
    return RecordDict({"site": record})


def _lie(rng: Random, plain: dict[str, Any]) -> None:
    """Falsify a field of a site's description, of its data, or of one of its columns."""
    data: Any = plain.get("data")
    columns = data.get("columns") if isinstance(data, dict) else None
    within: list[tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = [(plain, LIES)]
    if isinstance(data, dict):
        within.append((data, DATA_LIES))
    if isinstance(columns, list | tuple) and columns and all(isinstance(column, dict) for column in columns[:9]):
        within += [(rng.choice(columns[:9]), COLUMN_LIES), *[(rng.choice(columns[:9]), PLAUSIBLE)] * 3]
        if rng.random() < 0.1:  # more or fewer columns, in another order
            kept = list(columns[:9])
            data["columns"] = rng.choice((kept[::-1], kept[1:], kept * 2, [*kept, {**kept[0], "name": "more"}]))
    place, lies = rng.choice(within)
    field = rng.choice(sorted(lies))
    place[field] = rng.choice(lies[field])
    if isinstance(data, dict) and rng.random() < 0.7:  # a liar who counts
        _recount(data)


def _recount(data: dict[str, Any]) -> None:
    """Make the numbers of a description follow its lists, as those of an honest one do."""
    columns = data.get("columns")
    try:
        if columns:
            widths = [len(c["values"]) + 2 if c["kind"] == "category" else 1 + c["indicator"] for c in columns]
            data["shape"] = [sum(widths)]
        if data.get("labels"):
            data["classes"] = len(data["labels"])
        if data.get("tokens"):
            data["vocabulary"] = len(data["tokens"]) + 2
    except (TypeError, KeyError):
        pass
