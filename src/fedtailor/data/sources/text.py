"""Labelled text in CSV files, turned into token ids."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.data.description import CONTROLS, FIRST, LONGEST, PADDING, UNKNOWN
from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.files import encoded, located, unpacked_bytes
from fedtailor.errors import FedTailorError, nearest
from fedtailor.limits import check_bytes
from fedtailor.registry import option

_SEPARATED = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | dict.fromkeys(';:"', " "))


def tokens(text: str) -> list[str]:
    """Split text into lower-case words, with punctuation marks as separate tokens."""
    return text.lower().replace("<br />", " ").translate(_SEPARATED).split()


def text_pool(
    texts: Sequence[str],
    y: np.ndarray,
    labels: tuple[str, ...],
    test: np.ndarray | None,
    length: int,
    vocabulary: int,
    owner: np.ndarray | None = None,
    owners: tuple[str, ...] = (),
) -> Pool:
    """Make a pool of token ids from texts, cut or padded to `length`; which tokens are kept is decided once the training part is known."""
    check_bytes(4 * len(texts) * length, f"{len(texts):,} texts of {length:,} tokens")
    ids: dict[str, int] = {}
    x = np.full((len(texts), length), PADDING, np.int32)
    for row, document in zip(x, map(tokens, texts), strict=True):
        row[: len(document)] = [token_id(token, ids) for token in document[:length]]
    return Pool(
        x,
        y,
        len(labels),
        owner=owner,
        owners=owners,
        test=test,
        labels=labels,
        vocabulary=len(ids) + FIRST,
        tokens=tuple(ids),
        token_limit=vocabulary,
    )


def token_id(token: str, ids: dict[str, int]) -> int:
    """Return the id of a token, a new one if it has none yet; what cannot be written down in a description is unknown."""
    if len(token) > LONGEST or CONTROLS.search(token):
        return UNKNOWN
    return ids.setdefault(token, len(ids) + FIRST)


class Row(NamedTuple):
    """One labelled text."""

    label: str
    text: str
    client: str = ""


def read_rows(file: Path, columns: Sequence[str], client: str = "") -> list[Row]:
    """Read the rows. `columns` name the label's and the texts' columns, `client` that of owners; without names, the label comes first."""
    rows = []
    for line, (label, *texts) in _cells(file, [*columns, *filter(None, [client])], 2):
        owner = texts.pop().strip() if client else ""
        if client and not owner:
            raise FedTailorError(f"{file}, line {line}: the column '{client}' is empty. Name its client.")
        rows.append(Row(label.strip(), " ".join(texts), owner))
    return rows


def read_texts(file: Path, columns: Sequence[str]) -> list[str]:
    """Read the text of each row for a model that was trained on `columns`, of which the label's need not be there.

    Without names, the first column is the label and is passed over, unless it is the only one.
    """
    cells = [row for _, row in _cells(file, columns[1:], 1)]
    return [" ".join(row if columns or len(row) == 1 else row[1:]) for row in cells]


def _cells(file: Path, columns: Sequence[str], fewest: int) -> list[tuple[int, list[str]]]:
    """Read line number and cells of each row in the named columns, or without names in all of them, `fewest` at least."""
    rows: list[tuple[int, list[str]]] = []
    try:
        reader = csv.reader(io.StringIO(unpacked_bytes(file).decode("utf-8-sig"), newline=""), strict=True)
        where = _positions(next(reader, []), columns, file) if columns else None
        width = 0
        for row in reader:
            width = width or len(row)
            if len(row) != width or width < fewest:
                raise FedTailorError(
                    f"{file}, line {reader.line_num}: {len(row)} columns where {max(width, fewest)} or more, the same in every row, "
                    "were expected. The file is cut off or not a CSV file."
                )
            rows.append((reader.line_num, [row[i] for i in where] if where else row))
    except (csv.Error, UnicodeDecodeError) as error:
        raise FedTailorError(f"{file} cannot be read as CSV text ({error}).") from None
    if not rows:
        raise FedTailorError(f"{file} holds no rows.")
    return rows


def _positions(header: list[str], columns: Sequence[str], file: Path) -> list[int]:
    for column in columns:
        if column not in header:
            near = nearest(column, header)
            raise FedTailorError(f"{file} has no column '{column}'.{near} Its first line names: {', '.join(header)}.")
    return [header.index(column) for column in columns]


@sources.register("agnews", "ag-news")
@dataclass(frozen=True)
class AgNews(Source):
    """127,600 news in four classes (Zhang et al., 2015)."""

    length: int = option(200, "tokens kept of each text", at_least=1)
    vocabulary: int = option(98_635, "most token ids, padding and unknown included", at_least=3)

    def read(self, root: Path) -> Pool:
        files = [root / "ag_news_csv" / f"{part}.csv" for part in ("train", "test")]
        if not all(file.is_file() for file in files):
            raise missing(self.name, files)
        parts = [read_rows(file, ()) for file in files]
        names = ("world", "sports", "business", "technology")
        for file, rows in zip(files, parts, strict=True):
            wrong = next((i for i, row in enumerate(rows) if row.label not in ("1", "2", "3", "4")), None)
            if wrong is not None:
                raise FedTailorError(f"{file}: row {wrong + 1} has class '{rows[wrong].label}', expected 1, 2, 3 or 4.")
        y = np.array([int(row.label) - 1 for row in chain(*parts)])
        test = np.repeat([False, True], list(map(len, parts)))
        return text_pool([row.text for row in chain(*parts)], y, names, test, self.length, self.vocabulary)


@sources.register("text-csv")
@dataclass(frozen=True)
class TextCsv(Source):
    """Your own labelled texts: one CSV file, or a folder with train.csv and test.csv, with a line that names the columns or without."""

    path: str = option("", "the CSV file, or the folder of train.csv and test.csv")
    label: str = option(
        "", "the column to predict; empty, as is text: no line names the columns, and the label comes first"
    )
    text: tuple[str, ...] = option((), "the column of texts, or several, which are joined")
    client: str = option("", "the column that names the owner of a text; empty: texts have no owner")
    columns: tuple[str, ...] = option((), "label column, then text columns: short for label and text")
    length: int = option(200, "tokens kept of each text", at_least=1)
    vocabulary: int = option(98_635, "most token ids, padding and unknown included", at_least=3)

    @property
    def fitting_partition(self) -> str:
        return "natural" if self.client else super().fitting_partition

    def read(self, root: Path) -> Pool:
        columns = self.named_columns()
        place = located(self.path, root, self.name)
        files = [place / "train.csv", place / "test.csv"] if place.is_dir() else [place]
        parts = [read_rows(file, columns, self.client) for file in files]
        test = np.repeat([False, True], list(map(len, parts))) if len(parts) == 2 else None
        rows = list(chain(*parts))
        y, names = encoded([row.label for row in rows])
        owner, owners = encoded([row.client for row in rows]) if self.client else (None, ())
        pool = text_pool([row.text for row in rows], y, names, test, self.length, self.vocabulary, owner, owners)
        return replace(pool, keep_split=True, label=self.label)

    def named_columns(self) -> tuple[str, ...]:
        """Return the label's column and the texts', or nothing if no line names them."""
        if self.columns and (self.label or self.text):
            raise FedTailorError("data.columns is short for data.label and data.text: give the one or the other.")
        if len(self.columns) == 1:
            raise FedTailorError("data.columns must name the label's column and at least one text column.")
        columns = self.columns or tuple(filter(None, (self.label, *self.text)))
        if bool(self.label) != bool(self.text) or (self.client and not columns):
            raise FedTailorError(
                "Name the columns together: data.label=… and data.text=…, and data.client=… if there are owners."
            )
        return columns
