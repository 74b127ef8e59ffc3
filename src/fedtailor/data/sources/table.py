"""Tables: one row per sample, with columns for its features, its label and its owner."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedtailor.data.compact import as_labels, as_weights
from fedtailor.data.description import Description
from fedtailor.data.pool import Pool, Source, sources
from fedtailor.data.raw_table import is_number, raw_table
from fedtailor.data.sources.files import TASK, encoded, file_bytes, located, unpacked_bytes
from fedtailor.data.task import Kind
from fedtailor.errors import FedTailorError, nearest
from fedtailor.limits import check_bytes, check_count, limit_bytes, too_large
from fedtailor.registry import option

if TYPE_CHECKING:
    import pandas as pd

TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "validation")
VALUE = 8  # bytes of a value in a data frame
BATCH = 4096  # rows of a Parquet file read at a time
MANY = 100  # different numbers in a label column beyond which it may well be a quantity


@sources.register("table", "csv", "parquet")
@dataclass(frozen=True)
class Table(Source):
    """Your own table in a CSV or Parquet file. Text becomes categories, numbers are standardised over the training rows.

    Missing values are marked as such. What was done with each column is shown at the start of a run.
    """

    path: str = option("", "the .csv, .csv.gz or .parquet file")
    label: str = option("label", "the column to predict")
    client: str = option("", "the column that names the owner of a row; empty: rows have no owner")
    features: tuple[str, ...] = option((), "the columns to predict from; empty: all that can be learned from")
    ignore: tuple[str, ...] = option((), "columns to leave out")
    categories: tuple[str, ...] = option((), "columns whose numbers are names, not quantities")
    numbers: tuple[str, ...] = option((), "columns of numbers in which any text means that the value is missing")
    split: str = option("", "a column of 'train' and 'test'; empty: test rows are drawn")
    time: str = option("", "a column of times or numbers: the latest rows of each client are its test rows")
    group: str = option("", "a column such as the patient: rows of the same group are all training or all test rows")
    weight: str = option("", "a column of weights of the rows in the training loss")
    standardize: bool = option(True, "shift and scale each number to mean 0 and variance 1 over the training rows")

    task: Literal["auto", "multiclass", "binary", "regression"] = option("auto", TASK)

    @property
    def fitting_net(self) -> str:
        return "mlp"

    @property
    def fitting_partition(self) -> str:
        if self.client:
            return "natural"
        return "iid" if self.task == "regression" else super().fitting_partition

    def as_described(self, description: Description) -> Table:
        """Read the columns of the description, as the numbers or categories that they are there; never one that is to be left out here."""
        if not description.columns:
            return self
        own = {self.label, self.client, self.split, self.time, self.group, self.weight, *self.ignore}
        used = [column for column in description.columns if column.name not in own]
        used = [column for column in used if column.name in self.features] if self.features else used
        if not used:
            raise FedTailorError("None of the description's columns may be used here (data.features, data.ignore).")
        categories = tuple(column.name for column in used if column.kind == "category")
        task = description.kind if self.task == "auto" and description.kind != "multilabel" else self.task
        return replace(
            self,
            features=tuple(column.name for column in used),
            categories=categories,
            numbers=tuple(name for name in self.numbers if name not in categories),
            task=task,
        )

    def read(self, root: Path) -> Pool:
        place = located(self.path, root, self.name)
        return table_pool(read_table(place), self, str(place))


def read_table(file: Path) -> pd.DataFrame:
    """Read the data frame in a CSV file, gzipped or not, or in a Parquet file."""
    try:
        return _parquet(file) if file.suffix.lower() in (".parquet", ".pq") else _csv(file)
    except FedTailorError:
        raise
    except ImportError:
        raise FedTailorError(f"Reading {file} needs pyarrow:  pip install 'fedtailor[parquet]'") from None
    except Exception as error:  # a damaged file makes the two parsers raise errors of many kinds
        raise FedTailorError(f"{file} cannot be read as a table ({error}).") from None


def _csv(file: Path) -> pd.DataFrame:
    import pandas as pd  # imported here: it is slow to import, and most runs read no table

    data = unpacked_bytes(file)
    first = pd.read_csv(io.BytesIO(data), nrows=1)
    # Short rows are padded to the width of the first, so a few bytes per row can become many columns.
    rows = data.count(b"\n") + data.count(b"\r") + 1
    check_bytes(rows * (first.shape[1] + first.index.nlevels) * VALUE, file)
    return pd.read_csv(io.BytesIO(data), low_memory=False)  # a column has one type, however long it is


def _parquet(file: Path) -> pd.DataFrame:
    """Read in batches, so that a file that unpacks to more than it declares is refused in time.

    Texts stay dictionary-encoded until they are in the frame: a long text that a million rows share is stored once.
    """
    import pyarrow as pa
    from pyarrow import parquet

    data = file_bytes(file)
    opened = parquet.ParquetFile(pa.BufferReader(data))
    schema, said = opened.schema_arrow, opened.metadata
    check_bytes(max(0, said.num_rows) * len(schema) * VALUE, file)
    check_bytes(sum(said.row_group(i).total_byte_size for i in range(said.num_row_groups)), file)
    texts = [
        field.name for field in schema if field.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    ]
    batches, size = [], 0
    for batch in parquet.ParquetFile(pa.BufferReader(data), read_dictionary=texts).iter_batches(BATCH):
        batches.append(batch)
        size += batch.nbytes
        if size > limit_bytes():
            raise too_large(file, "it unfolds to more", "GB")
    frame = pa.Table.from_batches(batches, batches[0].schema if batches else schema).to_pandas()
    return frame.astype(dict.fromkeys((name for name in texts if name in frame), object))


def table_pool(frame: pd.DataFrame, table: Table, origin: str = "the table") -> Pool:
    """Make a pool of a data frame: raw features, labels of any kind as 0..C-1 in sorted order with their names kept."""
    _check_frame(frame, table, origin)
    special = [table.label, table.client, table.split, table.time, table.group, table.weight]
    raw = raw_table(frame, special, table.features, table.ignore, table.numbers, table.categories, origin)
    y, kind, labels = _labels(frame[table.label], table.task, f"{origin}: column '{table.label}'")
    owner, owners = encoded(frame[table.client].tolist()) if table.client else (None, ())
    return Pool(
        raw.x,
        y,
        classes=len(labels) or 1,
        owner=owner,
        owners=owners,
        test=_test_rows(frame[table.split], table.split, origin) if table.split else None,
        labels=labels,
        kind=kind,
        columns=raw.columns,
        standardize=table.standardize,
        label=table.label,
        keep_split=bool(table.split),
        time=_times(frame[table.time], origin) if table.time else None,
        group=encoded(frame[table.group].tolist())[0] if table.group else None,
        weight=_weights(frame[table.weight], origin) if table.weight else None,
        notes=raw.notes,
    )


def _check_frame(frame: pd.DataFrame, table: Table, origin: str) -> None:
    """Refuse a table that lacks a column, or values where there must be some."""
    if not hasattr(frame, "columns"):
        raise FedTailorError(f"A table is a data frame or the path of a file, not a {type(frame).__name__}.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise FedTailorError(f"{origin} has more than one column '{twice}'. Give each its own name.")
    if frame.empty:
        raise FedTailorError(f"{origin} has no rows.")
    required = [c for c in (table.label, table.client, table.split, table.time, table.group, table.weight) if c]
    for column in (*required, *table.features, *table.ignore, *table.numbers, *table.categories):
        if column not in frame.columns:
            near = nearest(column, map(str, frame.columns))
            raise FedTailorError(
                f"{origin} has no column '{column}'.{near} It has: {', '.join(map(str, frame.columns))}."
            )
    for column in required:
        empty = frame[column].isna()
        if empty.any():
            raise FedTailorError(
                f"{origin}: column '{column}' has {int(empty.sum())} missing values, the first in row "
                f"{int(empty.to_numpy().argmax()) + 1}. Fill them, or drop those rows."
            )
    if table.label in table.features:
        raise FedTailorError(f"The label column '{table.label}' cannot be a feature too.")


def _labels(column: pd.Series, task: Kind | Literal["auto"], where: str) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
    """Return the labels, the kind of task, and the names of classes."""
    if task == "multilabel":
        raise FedTailorError(f"{where} is one label per sample. Give the rows of a multi-label task as arrays.")
    if task == "regression" or (task == "auto" and column.dtype.kind == "f" and (column % 1 != 0).any()):
        if column.dtype.kind not in "biuf":
            raise FedTailorError(f"{where} holds no numbers, which a regression predicts.")
        return as_labels(column.to_numpy(np.float64), where, "regression"), "regression", ()
    if task == "auto" and is_number(column) and column.nunique() > MANY:
        raise FedTailorError(
            f"{where} has {column.nunique():,} different numbers. Set data.task=regression if it is a quantity, or data.task=multiclass if "
            "each number is a class."
        )
    values = [int(v) for v in column] if column.dtype.kind == "f" and (column % 1 == 0).all() else column.tolist()
    y, names = encoded(values)
    check_count(len(names), "CLASSES", where)
    if task == "binary" and len(names) != 2:
        raise FedTailorError(f"{where} has {len(names)} different values: a binary task has two.")
    return y, "binary" if task == "binary" else "multiclass", names


def _times(column: pd.Series, origin: str) -> np.ndarray:
    """Return times as numbers; a column of texts is read as dates."""
    import pandas as pd

    if is_number(column):
        return column.to_numpy(np.float64)
    try:
        return pd.to_datetime(column, errors="raise", format="ISO8601").astype("int64").to_numpy(np.float64)
    except (ValueError, TypeError, OverflowError):
        raise FedTailorError(
            f"{origin}: column '{column.name}' holds no numbers and no dates written as 2024-12-31, so its rows have no order in time."
        ) from None


def _weights(column: pd.Series, origin: str) -> np.ndarray:
    if not is_number(column):
        raise FedTailorError(f"{origin}: column '{column.name}' must hold the weights of rows as numbers.")
    return as_weights(column.to_numpy(np.float64), f"{origin}: column '{column.name}'")


def _test_rows(column: pd.Series, name: str, origin: str) -> np.ndarray:
    words = column.astype(str).str.strip().str.lower()
    strange = sorted(set(words) - {*TRAIN, *TEST})
    if strange:
        raise FedTailorError(
            f"{origin}: column '{name}' must say train or test in every row, but also says '{strange[0]}'."
        )
    return words.isin(TEST).to_numpy(bool)
