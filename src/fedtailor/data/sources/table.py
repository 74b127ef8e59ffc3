"""Tables: one row per sample, with columns for its features, its label and its owner."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedtailor.data.compact import as_labels
from fedtailor.data.pool import Pool, Source, sources
from fedtailor.data.sources.files import TASK, encoded, file_bytes, located, unpacked_bytes
from fedtailor.data.task import Kind
from fedtailor.errors import FedTailorError, nearest
from fedtailor.limits import GB, check_bytes, check_count, limit_bytes, too_large
from fedtailor.registry import option

if TYPE_CHECKING:
    import pandas as pd

TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "validation")
VALUE = 8  # bytes of a value in a data frame
BATCH = 4096  # rows of a Parquet file read at a time


@sources.register("table", "csv", "parquet")
@dataclass(frozen=True)
class Table(Source):
    """Your own table in a CSV or Parquet file; text becomes one column per value, numbers are standardised over the whole table."""

    path: str = option("", "the .csv, .csv.gz or .parquet file")
    label: str = option("label", "the column to predict")
    client: str = option("", "the column that names the owner of a row; empty: rows have no owner")
    features: tuple[str, ...] = option((), "the columns to predict from; empty: all other columns of numbers")
    split: str = option("", "a column of 'train' and 'test'; empty: no official test part")
    standardize: bool = option(
        True, "shift and scale each column of numbers to mean 0 and variance 1 over all rows, test rows included"
    )

    task: Literal["auto", "multiclass", "binary", "regression"] = option("auto", TASK)

    @property
    def fitting_net(self) -> str:
        return "mlp"

    @property
    def fitting_partition(self) -> str:
        if self.client:
            return "natural"
        return "iid" if self.task == "regression" else super().fitting_partition

    def read(self, root: Path) -> Pool:
        place = located(self.path, root, self.name)
        frame = read_table(place)
        return table_pool(
            frame,
            self.label,
            self.client,
            self.features,
            split=self.split,
            standardize=self.standardize,
            origin=str(place),
            task=self.task,
        )


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
    return pd.read_csv(io.BytesIO(data))


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


def table_pool(
    frame: pd.DataFrame,
    label: str,
    client: str = "",
    features: Sequence[str] = (),
    *,
    split: str = "",
    standardize: bool = True,
    origin: str = "the table",
    task: Kind | Literal["auto"] = "auto",
) -> Pool:
    """Make a pool of a data frame: float32 features, labels of any kind as 0..C-1 in sorted order with their names kept.

    Means and variances are taken over all rows together, which a simulation can do but real sites cannot: there, standardise
    each site's table beforehand and pass standardize=False.
    """
    if not hasattr(frame, "columns"):
        raise FedTailorError(f"A table is a data frame or the path of a file, not a {type(frame).__name__}.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise FedTailorError(f"{origin} has more than one column '{twice}'. Give each its own name.")
    if frame.empty:
        raise FedTailorError(f"{origin} has no rows.")
    special = [column for column in (label, client, split) if column]
    for column in (*special, *features):
        if column not in frame.columns:
            near = nearest(column, map(str, frame.columns))
            raise FedTailorError(
                f"{origin} has no column '{column}'.{near} It has: {', '.join(map(str, frame.columns))}."
            )
        if frame[column].isna().any():
            raise _missing_values(frame, column, origin)
    used = list(features) or [c for c in frame.columns if c not in special and _is_number(frame[c])]
    if label in used:
        raise FedTailorError(f"The label column '{label}' cannot be a feature too.")
    if not used:
        raise FedTailorError(f"{origin} has no column of numbers beside '{label}'; name columns in data.features.")
    widths = [1 if _is_number(frame[column]) else frame[column].nunique() for column in used]
    if sum(widths) * len(frame) * VALUE > limit_bytes():
        widest = used[int(np.argmax(widths))]
        raise too_large(
            f"{origin}: {len(frame):,} rows with a column for each of the {max(widths):,} different texts in '{widest}'",
            "more",
            "GB",
            -(-sum(widths) * len(frame) * VALUE // GB),
        )
    y, kind, labels = _labels(frame[label], task, f"{origin}: column '{label}'")
    owner, owners = encoded(frame[client].tolist()) if client else (None, ())
    return Pool(
        np.concatenate([_feature(frame, column, standardize, origin) for column in used], axis=1),
        y,
        classes=len(labels) or 1,
        owner=owner,
        owners=owners,
        test=_test_rows(frame[split], split, origin) if split else None,
        labels=labels,
        kind=kind,
    )


def _labels(column: pd.Series, task: Kind | Literal["auto"], where: str) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
    """Return the labels, the kind of task, and the names of classes."""
    if task == "multilabel":
        raise FedTailorError(f"{where} is one label a sample. Give the rows of a multi-label task as arrays.")
    if task == "regression" or (task == "auto" and column.dtype.kind == "f" and (column % 1 != 0).any()):
        if not _is_number(column):
            raise FedTailorError(f"{where} holds no numbers, which a regression predicts.")
        return as_labels(column.to_numpy(np.float64), where, "regression"), "regression", ()
    y, names = encoded(column.tolist())
    check_count(len(names), "CLASSES", where)
    if task == "binary" and len(names) != 2:
        raise FedTailorError(f"{where} has {len(names)} different values: a binary task has two.")
    return y, "binary" if task == "binary" else "multiclass", names


def _is_number(column: pd.Series) -> bool:
    return column.dtype.kind in "biuf"


def _missing_values(frame: pd.DataFrame, column: str, origin: str) -> FedTailorError:
    empty = frame[column].isna()
    return FedTailorError(
        f"{origin}: column '{column}' has {int(empty.sum())} missing values, the first in row {int(empty.to_numpy().argmax()) + 1}. "
        "Fill them, drop those rows, or leave the column out with data.features."
    )


def _feature(frame: pd.DataFrame, column: str, standardize: bool, origin: str) -> np.ndarray:
    values = frame[column]
    if values.isna().any():
        raise _missing_values(frame, column, origin)
    if not _is_number(values):
        codes, names = encoded(values.astype(str).tolist())
        columns = np.zeros((len(codes), len(names)), np.float32)
        columns[np.arange(len(codes)), codes] = 1
        return columns
    numbers = values.to_numpy(np.float64)
    if not np.isfinite(numbers).all():
        raise FedTailorError(f"{origin}: column '{column}' has infinite values.")
    if standardize:
        # A constant column becomes zeros.
        numbers = (numbers - numbers.mean()) / (numbers.std() or 1.0)
    return numbers.astype(np.float32)[:, None]


def _test_rows(column: pd.Series, name: str, origin: str) -> np.ndarray:
    words = column.astype(str).str.strip().str.lower()
    strange = sorted(set(words) - {*TRAIN, *TEST})
    if strange:
        raise FedTailorError(
            f"{origin}: column '{name}' must say train or test in every row, but also says '{strange[0]}'."
        )
    return words.isin(TEST).to_numpy(bool)
