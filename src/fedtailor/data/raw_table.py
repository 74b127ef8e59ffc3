"""From a data frame to a raw table: which columns are numbers, which are categories, and which cannot be learned from.

A raw table (see `description`) has one float per column: a number, the position of a category's value, or NaN where a value is missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtailor.data.description import CONTROLS, LONGEST, UNSEEN, Column, Description
from fedtailor.errors import FedTailorError, nearest
from fedtailor.limits import GB, limit_bytes, too_large

if TYPE_CHECKING:
    import pandas as pd

DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([T ]\d{1,2}:\d{2}.*)?\s*")
IDENTIFIER = re.compile(r"(?i)(.*[_\W])?(id|nr|no|uid|uuid|identifier|index)")
MOSTLY = 0.9  # share of values of a kind that makes a column one of that kind with exceptions
FEW = 20  # with fewer rows, all values of a column may well differ


@dataclass(frozen=True)
class RawTable:
    """The columns that are used, their raw values, and what was left out or changed."""

    columns: tuple[Column, ...]
    x: np.ndarray
    notes: tuple[str, ...]


def raw_table(
    frame: pd.DataFrame,
    special: Collection[str],
    features: Sequence[str] = (),
    ignore: Collection[str] = (),
    numbers: Collection[str] = (),
    categories: Collection[str] = (),
    origin: str = "the table",
) -> RawTable:
    """Choose the columns to predict from, and read them.

    Text becomes categories. Constant columns and those that look like identifiers are left out unless `features` names them, dates are
    refused, and numbers with some text among them are refused unless `numbers` or `categories` says what they are.
    """
    columns: list[Column] = []
    values: list[np.ndarray] = []
    notes: list[str] = []
    for name in list(features) or [c for c in frame.columns if c not in special and c not in ignore]:
        series = frame[name]
        reason = "" if features or name in numbers or name in categories else _useless(series, str(name))
        if reason:
            notes.append(f"Column '{name}' is left out: {reason}.")
            continue
        column, raw, note = _read(series, str(name), name in numbers, name in categories, origin)
        columns.append(column)
        values.append(raw)
        notes += [note] * bool(note)
    if not columns:
        raise FedTailorError(
            f"{origin} has no column to learn from. {' '.join(notes)} Name some in data.features.".replace("  ", " ")
        )
    _check_width(columns, len(frame), origin)
    return RawTable(tuple(columns), np.stack(values, axis=1), tuple(notes))


def raw_rows(frame: pd.DataFrame, description: Description, origin: str = "the table") -> tuple[np.ndarray, list[str]]:
    """Read the raw table of a description from new rows; also return warnings about values that training did not have."""
    raw = np.empty((len(frame), len(description.columns)))
    warnings = []
    for i, column in enumerate(description.columns):
        if column.name not in frame.columns:
            near = nearest(column.name, map(str, frame.columns))
            raise FedTailorError(f"{origin} has no column '{column.name}', which the model needs.{near}")
        series = frame[column.name]
        if column.kind == "number":
            raw[:, i], strange = _parsed(series)
            if strange:
                raise FedTailorError(f"{origin}: column '{column.name}' must hold numbers, but has '{strange[0]}'.")
            _check_finite(raw[:, i], column.name, origin)
            if np.isnan(raw[:, i]).any() and not column.indicator:
                warnings.append(
                    f"Column '{column.name}' has {int(np.isnan(raw[:, i]).sum())} missing values, and had none in training: the mean "
                    "stands in for them."
                )
        else:
            place = {value: float(k) for k, value in enumerate(column.values)}
            words = _words(series)
            raw[:, i] = [np.nan if word is None else place.get(word, UNSEEN) for word in words]
            unseen = sorted({word for word in words if word is not None and word not in place})
            if unseen:
                warnings.append(
                    f"Column '{column.name}' has {int((raw[:, i] == UNSEEN).sum())} values that training did not have, such as "
                    f"'{unseen[0]}'.{nearest(unseen[0], column.values)}"
                )
    return raw, warnings


def is_number(series: pd.Series) -> bool:
    return series.dtype.kind in "iuf"


def _useless(series: pd.Series, name: str) -> str:
    """Return why a column cannot help, in words; empty if it may."""
    known = series.dropna()
    if known.empty:
        return "it is empty"
    different = known.astype(str).nunique() if known.dtype.kind == "O" else known.nunique()
    if different == 1 and len(known) == len(series):
        return f"every row has the same value ('{known.iloc[0]}')"
    if different < len(known) * MOSTLY or len(known) < FEW:
        return ""
    if not is_number(series) and series.dtype.kind != "M":
        dates = sum(bool(DATE.fullmatch(str(value))) for value in known)
        mixed = sum(_number(value) is not None for value in known)
        if max(dates, mixed) < MOSTLY * len(known):
            return "nearly every row has another text, as an identifier or a comment has"
        return ""
    if series.dtype.kind in "iu" and (
        different == len(known) and int(known.max()) - int(known.min()) + 1 == len(known)
    ):
        return "its numbers count the rows"
    if series.dtype.kind in "iu" and different == len(known) and IDENTIFIER.fullmatch(name):
        return "its name and its values, all different, are those of an identifier"
    return ""


def _read(
    series: pd.Series, name: str, as_number: bool, as_category: bool, origin: str
) -> tuple[Column, np.ndarray, str]:
    """Return a column, its raw values, and a note on what was changed."""
    if CONTROLS.search(name) or len(name) > LONGEST:
        raise FedTailorError(f"{origin}: the column {name[:40]!r} needs a shorter name without control characters.")
    if as_category:
        return _category(series, name, origin)
    if is_number(series):
        raw = series.to_numpy(np.float64, na_value=np.nan)
        _check_finite(raw, name, origin)
        return Column(name, "number"), raw, ""
    known = series.dropna()
    raw, strange = _parsed(series)
    if as_number:
        note = f"Column '{name}': {len(strange)} texts such as '{strange[0]}' are taken as missing." if strange else ""
        _check_finite(raw, name, origin)
        return Column(name, "number"), raw, note
    if series.dtype.kind in "Mm" or sum(bool(DATE.fullmatch(str(v))) for v in known) > len(known) / 2:
        raise FedTailorError(
            f"{origin}: column '{name}' holds dates, which mean nothing to a net. Turn them into a number such as an age or days since an "
            f"event, leave them out with data.ignore={name}, or hold out the latest rows for testing with data.time={name}."
        )
    if strange and series.dtype.kind == "O" and len(strange) < (1 - MOSTLY) * len(known) and len(known) >= FEW:
        raise FedTailorError(
            f"{origin}: column '{name}' holds numbers, but also {len(strange)} texts such as '{strange[0]}'. Say data.numbers={name} to "
            f"take these as missing, or data.categories={name} to take every value as a category."
        )
    return _category(series, name, origin)


def _category(series: pd.Series, name: str, origin: str) -> tuple[Column, np.ndarray, str]:
    words = _words(series)
    long = next((word for word in words if word is not None and len(word) > LONGEST), None)
    if long is not None:
        raise FedTailorError(
            f"{origin}: column '{name}' holds long texts ('{long[:30]}…'), which are no categories. Leave it out with data.ignore={name}, "
            "or learn from texts with data=text-csv."
        )
    values = sorted(
        {word for word in words if word is not None},
        key=lambda word: (_number(word) is None, _number(word) or 0.0, word),
    )
    place = {value: float(i) for i, value in enumerate(values)}
    return Column(name, "category", tuple(values)), np.array([np.nan if w is None else place[w] for w in words]), ""


def _words(series: pd.Series) -> list[str | None]:
    """Return the values of a category as texts, None where one is missing. A whole number has no decimals, whatever its type."""
    missing = series.isna().to_numpy(bool)
    return [None if gone else _word(value) for value, gone in zip(series.tolist(), missing, strict=True)]


def _word(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | dict | set | bytes):
        raise FedTailorError("The cells of a table must be texts or numbers, but some are lists or the like.")
    return CONTROLS.sub(" ", str(value)).strip() or None


def _parsed(series: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Read numbers, NaN where there is none; also return the texts that are none."""
    if is_number(series):
        return series.to_numpy(np.float64, na_value=np.nan), []
    missing = series.isna().to_numpy(bool)
    found = [None if gone else _number(value) for value, gone in zip(series.tolist(), missing, strict=True)]
    strange = [str(v) for v, gone, n in zip(series.tolist(), missing, found, strict=True) if n is None and not gone]
    return np.array([np.nan if number is None else number for number in found], np.float64), strange


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _check_finite(raw: np.ndarray, name: str, origin: str) -> None:
    if np.isinf(raw).any():
        raise FedTailorError(f"{origin}: column '{name}' has infinite values.")


def _check_width(columns: Sequence[Column], rows: int, origin: str) -> None:
    needed = 4 * rows * sum(column.width for column in columns)
    if needed > limit_bytes():
        widest = max(columns, key=lambda column: column.width)
        what = f"{origin}: {rows:,} rows with a feature for each of the {len(widest.values):,} different texts in '{widest.name}'"
        raise too_large(what, "more", "GB", -(-needed // GB))
