"""Registries of methods, nets, partitions and data sets. Each entry is a frozen dataclass whose fields are its options.

A field made with `option` carries its meaning and bounds, so the command line's help, the validation of a config and the docs all come
from the one place where the field is declared.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import pydantic

from fedtailor.errors import FedTailorError, nearest

T = TypeVar("T")

_UNWRITABLE = re.compile("[\\0\ud800-\udfff]")  # a lone surrogate comes from an argument that is not UTF-8
MOST = 1e12  # largest number for an option without a bound of its own
LONGEST = 4096  # characters of any text, such as a path


@dataclasses.dataclass(frozen=True)
class Search:
    """Where tuning looks for an option's value: among choices, or from `low` to `high` on a linear or logarithmic scale."""

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return value in self.choices if self.choices else value is not None and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g} to {self.high:g}" + (" (log scale)" if self.log else "")


def among(*choices: Any) -> Search:
    return Search(choices)


def between(low: float, high: float) -> Search:
    return Search(low=low, high=high)


def log_between(low: float, high: float) -> Search:
    return Search(low=low, high=high, log=True)


def option(
    default: Any,
    meaning: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    search: Search | None = None,
) -> Any:
    """Declare a dataclass field with a meaning and bounds; bounds of a tuple hold for each entry. `search` is where tuning looks."""
    bounds = {"ge": at_least, "gt": above, "le": at_most}
    metadata = {"meaning": meaning, "bounds": {k: v for k, v in bounds.items() if v is not None}, "search": search}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option, described for a reader."""

    name: str
    type: str
    default: Any
    meaning: str
    search: Search | None = None

    @property
    def described(self) -> str:
        """What it means, and where tuning looks for its value."""
        return f"{self.meaning} (tuned over {self.search})" if self.search else self.meaning


def options(cls: type) -> list[Option]:
    """Return the options of a registered class, in the order they are declared."""
    hints = _hints(cls)
    return [
        Option(
            f.name, _type_name(hints[f.name], f), _default(f), f.metadata.get("meaning", ""), f.metadata.get("search")
        )
        for f in _fields(cls)
    ]


def build(cls: type[T], values: Mapping[str, Any], where: str = "", also: Iterable[str] = ()) -> T:
    """Make an instance of `cls` from untrusted values; the error for a bad key or value says what is allowed.

    `also` are keys that are allowed in the same place and read elsewhere.
    """
    known = {f.name: f for f in _fields(cls)}
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in known:
            allowed = [*known, *also]
            raise FedTailorError(
                f"Unknown key '{prefix}{key}'.{nearest(key, allowed)} Allowed: {', '.join(allowed) or 'none'}."
            )
    return cls(**{key: _checked(cls, known[key], value, prefix + key) for key, value in values.items()})


def check(instance: Any, where: str = "") -> None:
    """Check the options of an instance made in Python as `build` checks those of a config; for a dataclass's __post_init__."""
    prefix = f"{where}." if where else ""
    for field in _fields(type(instance)):
        if "meaning" not in field.metadata:
            continue  # not made with `option`, so not checked
        value = _checked(type(instance), field, getattr(instance, field.name), prefix + field.name)
        object.__setattr__(instance, field.name, value)  # the classes are frozen


def differing(instance: Any) -> str:
    """Return the repr of an instance with only the options that differ from their defaults."""
    return f"{type(instance).__name__}({_differences(instance)})"


def named(instance: Any) -> str:
    """Return an instance by its registered name, with the options that differ from their defaults: fedrep (head_epochs=5)."""
    options = _differences(instance)
    return f"{instance.name} ({options})" if options else instance.name


def _differences(instance: Any) -> str:
    given = {f.name: getattr(instance, f.name) for f in _fields(type(instance))}
    return ", ".join(f"{f.name}={given[f.name]!r}" for f in _fields(type(instance)) if given[f.name] != _default(f))


@cache  # Python compiles every annotation again at each call
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _adapter(cls: type, name: str) -> pydantic.TypeAdapter[Any]:
    field = next(f for f in _fields(cls) if f.name == name)
    bounds = field.metadata.get("bounds", {})
    hint = _hints(cls)[name]
    if bounds and get_origin(hint) is tuple:
        hint = tuple[Annotated[get_args(hint)[0], pydantic.Field(**bounds)], ...]  # type: ignore[misc]
    elif bounds:
        hint = Annotated[hint, pydantic.Field(**bounds)]
    return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(allow_inf_nan=False))


def _checked(cls: type, field: dataclasses.Field, value: Any, key: str) -> Any:
    hint = _hints(cls)[field.name]
    try:
        checked = _adapter(cls, field.name).validate_python(_listed(value, hint))
        if isinstance(value, bool) and not isinstance(checked, bool):
            raise ValueError("not true or false")
        _refuse_absurd(checked, field)
        return checked
    except (ValueError, OverflowError) as error:
        absurd = "" if isinstance(error, pydantic.ValidationError) else f" and {error}"
        near = nearest(value, [c for c in get_args(hint) if isinstance(c, str)]) if isinstance(value, str) else ""
        meaning = field.metadata.get("meaning", "")
        raise FedTailorError(
            f"{key} = {shortened(value)} is not allowed: expected {_type_name(hint, field)}{absurd}"
            f"{f' ({meaning})' if meaning else ''}.{near}"
        ) from None


def _listed(value: Any, hint: Any) -> Any:
    """Return a list as a person types it (128,64 or [a, b] without quotes, or one entry alone) as a list, anything else as it is."""
    kinds = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is tuple]
    if not kinds:
        return value
    only = kinds[0] is hint  # and not a number or a word as well
    if isinstance(value, str):
        text = value.strip()
        bracketed = text[:1] == "[" and text[-1:] == "]"
        if not (only or bracketed or "," in text):
            return value
        words = (text[1:-1] if bracketed else text).split(",")
        return [word.strip().strip("'\"") for word in words if word.strip()]
    if only and not isinstance(value, Iterable | bool):
        value = [value]
    if isinstance(value, list) and get_args(kinds[0])[0] is str:  # TOML takes a column called 2020 for a number
        return [str(entry) if type(entry) is int else entry for entry in value]
    return value


def _refuse_absurd(value: Any, field: dataclasses.Field) -> None:
    """Refuse a number or text that no option without bounds could need: far too large, too long, or unprintable."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, int | float) and abs(one) > MOST and "le" not in field.metadata.get("bounds", {}):
            raise ValueError(f"≤ {MOST:g}")
        if isinstance(one, str) and (len(one) > LONGEST or _UNWRITABLE.search(one)):
            raise ValueError(f"at most {LONGEST:,} characters of Unicode, none of them NUL")


def shortened(value: object) -> str:
    """Return a value as it was given, for an error, cut short if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _fields(cls: type) -> list[dataclasses.Field]:
    return [f for f in dataclasses.fields(cls) if f.init]


def _default(field: dataclasses.Field) -> Any:
    return (
        field.default_factory()
        if field.default is dataclasses.MISSING and callable(field.default_factory)
        else field.default
    )


def _type_name(hint: Any, field: dataclasses.Field) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤"}
    bounds = " and ".join(f"{signs[k]} {v:g}" for k, v in field.metadata.get("bounds", {}).items())
    return f"{_readable(hint)} {bounds}" if bounds else _readable(hint)


def _readable(hint: Any) -> str:
    """Return a type as a reader of the help knows it: list of int, sgd | adam, number or none."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(_readable, inner))
    if origin is tuple:
        return f"list of {_readable(inner[0])}" if inner[-1] is ... else f"[{', '.join(map(_readable, inner))}]"
    if origin is Callable or hint is Callable:
        return "function"
    return "none" if hint is NoneType else getattr(hint, "__name__", str(hint))


class Registry(Generic[T]):
    """Map names to classes of one kind. Names ignore case, and '_', ' ' and '+' count as '-'."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.classes: dict[str, type[T]] = {}
        self.aliases: dict[str, str] = {}

    def register(self, name: str, *aliases: str) -> Callable[[type[T]], type[T]]:
        """Register the decorated class as `name` (and by `aliases`, such as a paper's spelling)."""

        def add(cls: type[T]) -> type[T]:
            self.classes[name] = cls
            self.aliases.update({_plain(a): name for a in (name, *aliases)})
            cls.name = name  # type: ignore[attr-defined]
            if "__repr__" in vars(cls) and dataclasses.is_dataclass(cls):
                cls.__repr__ = differing  # type: ignore[method-assign]
            return cls

        return add

    def __contains__(self, name: str) -> bool:
        return _plain(name) in self.aliases

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}): {', '.join(sorted(self.classes))}"

    def find(self, name: Any) -> type[T]:
        """Return the class called `name`; a path to a .py file is imported, and the class it registers returned."""
        if not isinstance(name, str):
            raise FedTailorError(
                f"{self.kind} = {shortened(name)} is not a name. Known: {', '.join(sorted(self.classes))}."
            )
        if name.endswith(".py"):
            return self._from_file(Path(name))
        known = self.aliases.get(_plain(name))
        if known is None:
            near = nearest(_plain(name), self.aliases, self.aliases)
            raise FedTailorError(
                f"There is no {self.kind} {shortened(name)}.{near} Known: {', '.join(sorted(self.classes))}."
            )
        return self.classes[known]

    def build(self, name: Any, values: Mapping[str, Any], also: Iterable[str] = ()) -> T:
        return build(self.find(name), values, self.kind, also)

    def optional(self, given: Any) -> T | None:
        """Return an instance from itself, its name, or a table with its name and options; None from none, which is the default."""
        if given is None or given == {}:
            return None
        if not isinstance(given, str | Mapping):
            return cast(T, given)
        table = dict(given) if isinstance(given, Mapping) else {"name": given}
        if "name" not in table:
            raise FedTailorError(
                f"{self.kind}.{next(iter(table))} needs {self.kind}=NAME beside it. Known: {', '.join(sorted(self.classes))}."
            )
        name = table.pop("name")
        return None if name == "none" else self.build(name, table)

    def _from_file(self, path: Path) -> type[T]:
        if not os.path.isfile(path):  # unlike Path.is_file, it accepts any text
            raise FedTailorError(f"The {self.kind} file '{path}' does not exist (looked in {Path.cwd()}).")
        module_name = f"fedtailor_user_{path.stem}"
        before = dict(self.classes)
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise FedTailorError(
                f"The {self.kind} file '{path}' cannot be imported: {_mistake(error, path)}"
            ) from error
        added = [cls for name, cls in self.classes.items() if before.get(name) is not cls]
        if len(added) != 1:
            raise FedTailorError(
                f"'{path}' must register exactly one {self.kind} (it registers {len(added)}): decorate one class, such as with "
                '@ft.nets.register("name") for a net.'
            )
        added[0].file = str(path.resolve())  # type: ignore[attr-defined]
        return added[0]


def _mistake(error: Exception, path: Path) -> str:
    """Return what went wrong in a user's file, and in which of its lines."""
    if isinstance(error, FedTailorError):
        return str(error)
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == os.path.abspath(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{f'line {line}: ' if line else ''}{type(error).__name__}: {what}."


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-").replace("+", "-")
