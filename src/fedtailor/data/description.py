"""The description of a data set: how raw rows, texts and images become what a net reads, and what its labels mean.

It is learned once, from training samples only, and stored as plain JSON with the run and every exported model. Raw samples are arrays
that need no description to be made: a table is a matrix of floats with one column per column of the table, in which NaN is a missing
value and a category is the position of its value; a text is a row of token ids.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.data.task import KINDS, Kind, Task
from fedtailor.errors import FedTailorError
from fedtailor.files import replace_text

FORMAT = 1
DTYPES = ("uint8", "float32", "float64", "int8", "int16", "int32", "int64")
# Upper bounds of what a description may claim: nets grow with these numbers.
CLASSES = 50_000
TOKENS = 1_000_000
VALUES = 2**28  # of one sample
COLUMNS = 100_000
LARGEST = 1e300  # of a scaling constant
LONGEST = 200  # characters of a name
MEANS, STDS = (0.0, 1.0), (0.001, 1.0)  # of pixels scaled to [0, 1]
CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
)  # characters that a log or a terminal would interpret

PADDING, UNKNOWN, FIRST = 0, 1, 2  # token ids: the two special ones, and that of the first token
UNSEEN = -1.0  # in raw tables: a category that the description does not have


@dataclass(frozen=True)
class Column:
    """One column of a table and the features made of it.

    A number becomes (value − mean) / std, or 0 if it is missing; with `indicator`, a second feature is 1 where it is missing.
    A category becomes one feature per value, one for a missing value, and one for a value that is not in `values`.
    """

    name: str
    kind: Literal["number", "category"]
    values: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    indicator: bool = False

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.values) + 2 if self.kind == "category" else 1 + self.indicator

    def fitted(self, raw: np.ndarray, standardize: bool) -> Column:
        """Learn the scaling constants, or the values that occur, from the training rows of this column."""
        known = raw[~np.isnan(raw)]
        if self.kind == "category":
            return replace(self, values=tuple(self.values[i] for i in np.unique(known.astype(np.int64))))
        indicator = len(known) < len(raw)
        if not standardize or not len(known):
            return replace(self, indicator=indicator)
        return replace(self, mean=float(known.mean()), std=float(known.std()) or 1.0, indicator=indicator)

    def recoded(self, raw: np.ndarray, values: Sequence[str]) -> np.ndarray:
        """Translate positions in `values` to positions in this column's values; others become UNSEEN."""
        place = {value: i for i, value in enumerate(self.values)}
        table = np.array([place.get(value, UNSEEN) for value in values] or [UNSEEN], np.float64)
        found = np.full(len(raw), np.nan)
        known = ~np.isnan(raw)
        found[known] = table[raw[known].astype(np.int64)]
        return found


@dataclass(frozen=True)
class Description:
    """What the samples of a federation are: shape, type, labels, and for tables, images and texts how they are read."""

    shape: tuple[int, ...]
    classes: int  # or labels of a multi-label task, or targets of a regression
    kind: Kind = "multiclass"
    dtype: str = "float32"
    labels: tuple[str, ...] = ()  # names of the classes
    label: str = ""  # name of the table's label column
    mean: tuple[float, ...] = (0.5,)  # of pixels scaled to [0, 1]: one number, or one per channel
    std: tuple[float, ...] = (0.5,)
    columns: tuple[Column, ...] = ()
    tokens: tuple[str, ...] = ()  # the tokens of ids 2, 3 …; empty if samples are token ids of an unknown tokenizer
    vocabulary: int = 0  # number of token ids
    notes: tuple[str, ...] = ()  # what was left out or changed when the data was read

    @property
    def task(self) -> Task:
        return Task(self.shape, self.classes, self.vocabulary, self.kind)

    @property
    def source(self) -> Literal["table", "text", "images", "arrays"]:
        """What raw samples are."""
        if self.columns:
            return "table"
        if self.tokens:
            return "text"
        return "images" if self.dtype == "uint8" and len(self.shape) == 3 else "arrays"

    def features(self, raw: Tensor) -> Tensor:
        """Turn the raw rows of a table into float32 features."""
        parts = []
        for column, values in zip(self.columns, raw.double().unbind(1), strict=True):
            missing = values.isnan()
            if column.kind == "category":
                count = len(column.values)
                place = torch.where(missing, count, torch.where(values < 0, count + 1, values)).long()
                parts.append(F.one_hot(place, column.width).double())
            else:
                parts.append(torch.where(missing, 0.0, (values - column.mean) / column.std)[:, None])
                if column.indicator:
                    parts.append(missing[:, None].double())
        return torch.cat(parts, dim=1).float()

    # -- comparing ------------------------------------------------------------------------------------------------------------------

    def misfit(self, other: Description, values: bool = True) -> str:
        """Return how the samples or labels of another description mean something else than these; empty if they do not.

        Scaling constants and notes may differ, and the other may have fewer classes. Without `values`, values of categories are counted
        rather than named.
        """
        if (self.source == "table") != (other.source == "table"):
            return f"its samples are {other.source} where {self.source} was expected"
        if self.columns:
            return self._column_misfit(other, values)
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return f"its samples are {other.dtype} of shape {other.shape} where {self.dtype} of shape {self.shape} was expected"
        if self.tokens and other.tokens and self.tokens != other.tokens:
            return "its texts are read with another vocabulary, so its token ids stand for other words"
        return ""

    def _column_misfit(self, other: Description, values: bool) -> str:
        own, theirs = ({c.name: c for c in d.columns} for d in (self, other))
        missing, extra = ([name for name in a if name not in b] for a, b in ((own, theirs), (theirs, own)))
        if missing or extra:
            found = [f"it has no column {named(missing)}"] * bool(missing) + [
                f"it has the column {named(extra)}, which is not expected"
            ] * bool(extra)
            return " and ".join(found)
        for name, column in own.items():
            found_kind = theirs[name].kind
            if found_kind != column.kind:
                return f"its column '{name}' is a {found_kind} where a {column.kind} was expected"
            known = set(column.values)
            unknown = [value for value in theirs[name].values if value not in known]
            if unknown and not values:
                return f"its column '{name}' has values that are not expected: {len(unknown)} of them"
            if unknown:
                return f"its column '{name}' has the value {named(unknown)}, where {named(column.values)} were expected"
        return ""

    # -- as JSON --------------------------------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def text(self) -> str:
        """Return the JSON of its file."""
        return json.dumps(self.plain(), indent=1, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        replace_text(path, self.text())

    @classmethod
    def load(cls, path: Path) -> Description:
        """Read a description from a JSON file; what follows from its lists of columns, labels and tokens need not be kept up by hand."""
        try:
            return cls.read(_counted(json.loads(path.read_bytes())))
        except OSError as error:
            raise FedTailorError(f"The description '{path}' cannot be read ({error.strerror or error}).") from None
        except (ValueError, RecursionError) as error:
            raise FedTailorError(f"'{path}' is not a description of data: {error}.") from None

    @classmethod
    def read(cls, plain: Any) -> Description:
        """Read an untrusted description; a ValueError says what is wrong with it."""
        expected = {field.name for field in dataclasses.fields(cls)} | {"format"}
        if not isinstance(plain, dict) or plain.keys() != expected:
            raise ValueError(
                f"a description has the fields {', '.join(sorted(expected))}; it may be of another version"
            )
        if plain["format"] != FORMAT:
            raise ValueError(f"its format is {plain['format']!r}, and this version reads {FORMAT}")
        if plain["dtype"] not in DTYPES:
            raise ValueError(f"its samples are of no type in {', '.join(DTYPES)}")
        if plain["kind"] not in KINDS:
            raise ValueError(f"its task is none of {', '.join(KINDS)}")
        shape = tuple(whole(n, "shape", 1, VALUES) for n in several(plain, "shape", range(1, 9)))
        classes = whole(plain["classes"], "classes", 1, CLASSES)
        found = cls(
            shape=shape,
            classes=classes,
            kind=plain["kind"],
            dtype=plain["dtype"],
            labels=tuple(text(label, "label", 0) for label in several(plain, "labels", (0, classes))),
            label=text(plain["label"], "label's column", 0),
            mean=tuple(real(m, "mean", *MEANS) for m in several(plain, "mean", (1, shape[0]))),
            std=tuple(real(s, "std", *STDS) for s in several(plain, "std", (1, shape[0]))),
            columns=tuple(_column(column) for column in several(plain, "columns", range(COLUMNS + 1))),
            tokens=tuple(text(token, "token", 1) for token in several(plain, "tokens", range(TOKENS + 1))),
            vocabulary=whole(plain["vocabulary"], "vocabulary", 0, TOKENS),
            notes=tuple(text(note, "note", 0, 2000) for note in several(plain, "notes", range(COLUMNS + 1))),
        )
        found._check()
        return found

    def _check(self) -> None:
        if math.prod(self.shape) > VALUES:
            raise ValueError(f"a sample of shape {self.shape} has more than {VALUES:,} values")
        if self.kind == "binary" and self.classes != 2:
            raise ValueError("its task is binary, but it does not have two classes")
        for what, names in (
            ("labels", self.labels),
            ("columns", [c.name for c in self.columns]),
            ("tokens", self.tokens),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"two of its {what} have the same name")
        if self.columns and self.shape != (sum(column.width for column in self.columns),):
            raise ValueError("its shape is not that of the features of its columns")
        if self.tokens and self.vocabulary != len(self.tokens) + FIRST:
            raise ValueError("its vocabulary is not that of its tokens")


def _counted(plain: Any) -> Any:
    """Set the numbers that lists determine, where the lists can be read: people edit these files."""
    if not isinstance(plain, dict):
        return plain
    plain = dict(plain)
    if plain.get("columns") and isinstance(plain["columns"], list):
        plain["shape"] = [sum(_column(column).width for column in plain["columns"])]
    if plain.get("labels") and isinstance(plain["labels"], list):
        plain["classes"] = len(plain["labels"])
    if plain.get("tokens") and isinstance(plain["tokens"], list):
        plain["vocabulary"] = len(plain["tokens"]) + FIRST
    return plain


def _column(plain: Any) -> Column:
    fields = {field.name for field in dataclasses.fields(Column)}
    if not isinstance(plain, dict) or plain.keys() != fields:
        raise ValueError(f"a column has the fields {', '.join(sorted(fields))}")
    if plain["kind"] not in ("number", "category") or not isinstance(plain["indicator"], bool):
        raise ValueError("a column is a number or a category, and its indicator true or false")
    values = tuple(text(value, "category", 0) for value in several(plain, "values", range(COLUMNS + 1)))
    if len(set(values)) < len(values):
        raise ValueError("two values of a category have the same name")
    return Column(
        name=text(plain["name"], "column's name", 0),
        kind=plain["kind"],
        values=values,
        mean=real(plain["mean"], "mean", -LARGEST, LARGEST),
        std=real(plain["std"], "std", 1 / LARGEST, LARGEST),
        indicator=plain["indicator"],
    )


def whole(value: Any, what: str, least: int, most: int) -> int:
    """Check a whole number that somebody else wrote."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"its {what} is not a whole number from {least:,} to {most:,}")
    return value


def real(value: Any, what: str, least: float, most: float) -> float:
    """Check a number that somebody else wrote."""
    if type(value) not in (int, float) or not least <= value <= most:  # also refuses NaN
        raise ValueError(f"its {what} is not a number from {least:g} to {most:g}")
    return float(value)


def text(value: Any, what: str, least: int, most: int = LONGEST) -> str:
    """Check a name that somebody else wrote."""
    if not isinstance(value, str) or not least <= len(value) <= most or CONTROLS.search(value):
        raise ValueError(f"its {what} is not a text of {least} to {most} characters without control characters")
    return value


def several(plain: dict[str, Any], what: str, allowed: Sequence[int]) -> Sequence[Any]:
    """Check a list that somebody else wrote: its length is one of `allowed`."""
    values = plain[what]
    if not isinstance(values, list | tuple) or len(values) not in allowed:
        counts = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else " or ".join(map(str, allowed))
        raise ValueError(f"its {what} is not a list of {counts} entries")
    return values


def named(names: Sequence[str], most: int = 5) -> str:
    """Return names in quotes, the first few, cut short where they are long: somebody else may have chosen them."""
    shown = ", ".join(f"'{name[:40]}{'…' * (len(name) > 40)}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
