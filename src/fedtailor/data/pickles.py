"""Read pickle streams as data: nothing in them is imported or called.

CIFAR's python files and PFLlib's client files are pickles, and unpickling runs whatever program a file holds. Here a small stack machine
walks the opcodes instead and builds plain values and NumPy arrays itself; a stream that asks for anything else is refused by name.
No library does this: a `pickle.Unpickler` with a list of allowed names still calls them, with the file's arguments and unbounded memory.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from fedtailor.data.npy import read_header, read_npy
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes

_PUSHED = re.compile(r"(BIN)?INT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?(BIN)?(STRING|BYTES|UNICODE)8?|BYTEARRAY8")
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KNOWN = re.compile(
    r"numpy\.core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)|numpy\.(ndarray|dtype)|_codecs\.encode"
    r"|builtins\.(bytes|bytearray|set|frozenset)"
)
_DTYPE = re.compile(r"b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SUV]\d{1,9}|O8?")
OBJECT = 256  # bytes of the small object that one instruction may make, including its entries in stack and memo
CHECKED = 1024  # instructions between two checks of the limit
_SCALARS = (str, bytes, int, float, type(None), np.generic)


def read_pickle(data: bytes, origin: str) -> Any:
    """Return the plain value that a pickle stream describes; `origin` names the file in errors."""
    try:
        return _Machine(data, origin).run()
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError, struct.error) as error:
        raise FedTailorError(f"{origin} is damaged or not a pickle of plain data ({error}).") from None


def read_object_npy(data: bytes, origin: str) -> np.ndarray:
    """Return the array in an .npy file's bytes, even if its entries are pickled Python objects."""
    header = read_header(io.BytesIO(data), len(data), origin)
    if not header.dtype.hasobject:
        return read_npy(data, origin)
    value = read_pickle(data[header.start :], origin)
    if not isinstance(value, np.ndarray) or value.shape != header.shape:
        raise FedTailorError(f"{origin} is damaged: it should hold an array of shape {header.shape}.")
    return value


@dataclass(frozen=True)
class _Global:
    """A name that a stream refers to; it is never resolved."""

    name: str


@dataclass(eq=False)
class _Unbuilt:
    """An array or dtype between its REDUCE and its BUILD, and the memo slots that wait for the result."""

    kind: str
    dtype: np.dtype | None = None
    slots: list[int] = field(default_factory=list)


class _Machine:
    def __init__(self, data: bytes, origin: str) -> None:
        self.data, self.origin = data, origin
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # Every copied byte or item came from the stream once, so more copies than the stream is long can only be a memory bomb.
        self.budget = len(data)

    def run(self) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(self.data)):
            if opcode.name == "STOP":
                break
            if count % CHECKED == 0:
                check_bytes(count * OBJECT, self.origin)
            self.step(opcode.name, argument)
        return _plain(self.pop())

    def step(self, name: str, argument: Any) -> None:
        if _PUSHED.fullmatch(name):
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            self.stack.append(_tuple([self.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name not in ("PROTO", "FRAME"):
            handler = getattr(self, f"do_{name.lower()}", None)
            if handler is None:
                what = str(argument).replace(" ", ".", 1) if name == "INST" else self.named_on_stack()
                self.refuse(f"the instruction {name}{f' with {what}' if what else ''}")
            handler(argument)

    def refuse(self, what: str) -> NoReturn:
        raise FedTailorError(
            f"{self.origin} was refused: it asks for {what}. Only plain data and NumPy arrays are read, and nothing in a file is "
            "ever executed; do not open this file with other programs unless you trust where it comes from."
        )

    def named_on_stack(self) -> str:
        return next((value.name for value in reversed(self.stack) if isinstance(value, _Global)), "")

    def spend(self, amount: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise ValueError("it unfolds to more than it holds")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("the stack is empty")
        return self.stack.pop()

    def pop_marked(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def top(self, kind: type) -> Any:
        value = self.pop()
        self.stack.append(value)
        if not isinstance(value, kind):
            raise ValueError(f"expected a {kind.__name__} to fill, found {type(value).__name__}")
        return value

    def do_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def do_pop(self, _: Any) -> None:
        # As in Python's own unpickler, POP right after MARK removes the mark.
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def do_pop_mark(self, _: Any) -> None:
        self.pop_marked()

    def do_dup(self, _: Any) -> None:
        self.stack.append(self.top(object))

    def do_list(self, _: Any) -> None:
        self.stack.append([_plain(item) for item in self.pop_marked()])

    def do_tuple(self, _: Any) -> None:
        self.stack.append(_tuple(self.pop_marked()))

    def do_dict(self, _: Any) -> None:
        self.stack.append(_pairs(self.pop_marked()))

    def do_frozenset(self, _: Any) -> None:
        self.stack.append(frozenset(map(_key, self.pop_marked())))

    def do_append(self, _: Any) -> None:
        item = _plain(self.pop())
        self.top(list).append(item)

    def do_appends(self, _: Any) -> None:
        items = [_plain(item) for item in self.pop_marked()]
        self.top(list).extend(items)

    def do_setitem(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.top(dict).update(_pairs([key, value]))

    def do_setitems(self, _: Any) -> None:
        items = _pairs(self.pop_marked())
        self.top(dict).update(items)

    def do_additems(self, _: Any) -> None:
        items = self.pop_marked()
        self.top(set).update(map(_key, items))

    def do_put(self, slot: int) -> None:
        value = self.memo[slot] = self.top(object)
        if isinstance(value, _Unbuilt):
            value.slots.append(slot)

    do_binput = do_long_binput = do_put

    def do_memoize(self, _: Any) -> None:
        self.do_put(len(self.memo))

    def do_get(self, slot: int) -> None:
        self.stack.append(self.memo[slot])

    do_binget = do_long_binget = do_get

    def do_global(self, argument: str) -> None:
        self.push_global(*argument.split(" ", 1))

    def do_stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a global's name is not text")
        self.push_global(module, name)

    def push_global(self, module: str, name: str) -> None:
        today = re.sub(r"^numpy\._core\b", "numpy.core", re.sub(r"^__builtin__$", "builtins", module))
        if not _KNOWN.fullmatch(f"{today}.{name}"):
            self.refuse(f"'{module}.{name}'")
        self.stack.append(_Global(f"{today}.{name}"))

    def do_reduce(self, _: Any) -> None:
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, _Global) or not isinstance(arguments, tuple):
            self.refuse(f"a call of {called.name if isinstance(called, _Global) else type(called).__name__}")
        match called.name.rpartition(".")[2], arguments:
            case "_reconstruct", (_Global("numpy.ndarray"), tuple(), _):
                result: Any = _Unbuilt("array")
            case "dtype", (str(code), *_):
                result = _Unbuilt("dtype", _dtype(code))
            case "scalar", (np.dtype() as dtype, str() | bytes() as raw):
                result = _array(self.as_bytes(raw), dtype, (), "C")[()]
            case "_frombuffer", (bytes() | bytearray() as raw, np.dtype() as dtype, tuple(shape), str(order), *axes):
                result = _array(raw, dtype, shape, "F" if order == "F" else "C")
                result = result.transpose(axes[0]) if order == "K" and axes and axes[0] is not None else result
            case "encode", (str(text), "latin1" | "latin-1"):
                result = self.as_bytes(text)
            case "bytes" | "bytearray" as kind, ():
                result = b"" if kind == "bytes" else bytearray()
            case "bytearray", (bytes(raw),):
                self.spend(len(raw))
                result = bytearray(raw)
            case "set" | "frozenset" as kind, (list(items),):
                self.spend(len(items))
                result = {"set": set, "frozenset": frozenset}[kind](map(_key, items))
            case _:
                self.refuse(f"an unusual call of '{called.name}'")
        self.stack.append(result)

    def do_build(self, _: Any) -> None:
        state, target = self.pop(), self.pop()
        if not isinstance(target, _Unbuilt):
            self.refuse(f"the instruction BUILD on {getattr(target, 'name', type(target).__name__)}")
        match target.kind, state:
            case "dtype", (_, "<" | ">" | "|" | "=" as order, None, None, None, *_):
                assert target.dtype is not None
                built: Any = target.dtype.newbyteorder(order)
            case "array", (_, tuple(shape), np.dtype() as dtype, fortran, str() | bytes() as raw) if (
                not dtype.hasobject
            ):
                built = _array(self.as_bytes(raw), dtype, shape, "F" if fortran else "C")
            case "array", (_, tuple(shape), np.dtype() as dtype, fortran, list(items)) if dtype.hasobject:
                self.spend(len(items))
                built = _objects(items, shape, "F" if fortran else "C")
            case _:
                self.refuse(f"an unusual NumPy {target.kind}")
        for slot in target.slots:
            self.memo[slot] = built
        self.stack.append(built)

    def as_bytes(self, raw: str | bytes) -> bytes:
        """Return bytes that Python 2 wrote as text, one character per byte."""
        if isinstance(raw, bytes):
            return raw
        self.spend(len(raw))
        return raw.encode("latin-1")


def _plain(value: Any) -> Any:
    if isinstance(value, _Global | _Unbuilt):
        raise ValueError("it leaves something unfinished where data should be")
    return value


def _tuple(items: list[Any]) -> tuple[Any, ...]:
    # Names are allowed here: the arguments of a call are a tuple.
    return tuple(item if isinstance(item, _Global) else _plain(item) for item in items)


def _key(value: Any) -> Any:
    """A dict key or set entry: a scalar or a tuple of scalars, since hashing tuples nested without end overflows the C stack."""
    if isinstance(value, _SCALARS) or (isinstance(value, tuple) and all(isinstance(v, _SCALARS) for v in value)):
        return value
    raise ValueError(f"a {type(value).__name__} cannot be a key here")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a key without a value")
    return {_key(key): _plain(value) for key, value in zip(items[::2], items[1::2], strict=True)}


def _dtype(code: str) -> np.dtype:
    if not _DTYPE.fullmatch(code):
        raise ValueError(f"the NumPy type '{code}' is not read")
    return np.dtype(code)


def _count(shape: Any) -> int:
    if not all(type(side) is int and side >= 0 for side in shape) or len(shape) > 32:
        raise ValueError(f"impossible shape of length {len(shape)}")
    return math.prod(shape)


def _array(raw: bytes | bytearray, dtype: np.dtype, shape: Any, order: Any) -> np.ndarray:
    expected = _count(shape) * dtype.itemsize
    if dtype.hasobject or dtype.itemsize == 0 or expected != len(raw):
        raise ValueError(f"an array of {dtype} needs {expected} bytes and has {len(raw)}")
    return np.ndarray(tuple(shape), dtype, buffer=raw, order=order)


def _objects(items: list[Any], shape: Any, order: Any) -> np.ndarray:
    if _count(shape) != len(items):
        raise ValueError(f"an array of {_count(shape)} objects has {len(items)}")
    flat = np.empty(len(items), object)
    for position, item in enumerate(items):
        flat[position] = item
    return flat.reshape(tuple(shape), order=order)
