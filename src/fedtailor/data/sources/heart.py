"""Heart disease: patients of four hospitals, a natural federation that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedtailor.data.pool import Pool, Source, sources
from fedtailor.data.sources.table import Table, table_pool
from fedtailor.errors import FedTailorError
from fedtailor.registry import option

if TYPE_CHECKING:
    import pandas as pd

HOSPITALS = {"Cleveland": "cleveland", "Hungarian": "hungarian", "Switzerland": "switzerland", "VA": "va"}
DIAGNOSES = ("no disease", "disease")
CATEGORIES: dict[str, tuple[str, ...]] = {  # what the codes 0, 1, 2 … of a column mean; empty: there is no such code
    "sex": ("female", "male"),
    "cp": ("", "typical angina", "atypical angina", "non-anginal pain", "asymptomatic"),
    "fbs": ("no", "yes"),
    "restecg": ("normal", "ST-T wave abnormality", "left ventricular hypertrophy"),
    "exang": ("no", "yes"),
    "slope": ("", "upsloping", "flat", "downsloping"),
    "thal": ("", "", "", "normal", "", "", "fixed defect", "reversible defect"),
}
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach"),
    *("exang", "oldpeak", "slope", "ca", "thal", "num"),
)
SPARSE = ("slope", "ca", "thal")  # known in hardly any patient outside Cleveland
SPLIT = {"train_size": 0.66, "test_size": 0.34, "random_state": 43}  # the benchmark's


@sources.register("heart")
@dataclass(frozen=True)
class Heart(Source):
    """920 patients of four hospitals, 13 measurements with missing values, with or without heart disease (Janosi et al., 1988; UCI)."""

    protocol: Literal["full", "flamby"] = option(
        "full",
        "full: all patients and columns; flamby: the 740 complete rows, 13 features and test rows of FLamby's Fed-Heart-Disease",
    )
    pooled: bool = option(False, "every hospital trains on the training rows of all four (protocol=flamby only)")

    def __post_init__(self) -> None:
        if self.pooled and self.protocol != "flamby":
            raise FedTailorError("data.pooled=true needs a test part that is set apart: add data.protocol=flamby.")

    @property
    def fitting_partition(self) -> str:
        return "natural"

    def read(self, root: Path) -> Pool:
        if self.protocol == "full":
            pool = table_pool(patients(), Table(label="disease", client="hospital", task="binary"), "data=heart")
            return replace(pool, y=1 - pool.y, labels=DIAGNOSES)  # class 1 is the disease; by name it would be class 0
        return _flamby(pooled=self.pooled)


def recorded() -> pd.DataFrame:
    """Read the numbers of all patients as they were recorded, NaN where one is missing, and the hospital."""
    import pandas as pd  # slow to import

    folder = files("fedtailor.data").joinpath("heart")
    parts = []
    for hospital, name in HOSPITALS.items():
        with folder.joinpath(f"processed.{name}.data").open("rb") as file:
            part = pd.read_csv(file, header=None, names=list(COLUMNS), na_values="?", dtype=np.float64)
        parts.append(part.assign(hospital=hospital))
    return pd.concat(parts, ignore_index=True)


def patients() -> pd.DataFrame:
    """All patients: categories in words, NaN where a value is missing, the hospital and the diagnosis."""
    frame = recorded()
    words = {column: frame[column].map(dict(enumerate(names))) for column, names in CATEGORIES.items()}
    disease = np.where(frame["num"] > 0, *reversed(DIAGNOSES))
    return frame.assign(**words, disease=disease).drop(columns="num")


def _flamby(*, pooled: bool) -> Pool:
    """Follow the benchmark: complete rows, dummies without the first level, scaled by each hospital's own training rows.

    Pooled, the training rows of all are scaled together and every hospital holds them; its test rows stay its own.
    """
    import pandas as pd

    frame = recorded().drop(columns=list(SPARSE)).dropna(ignore_index=True)
    y = (frame["num"] > 0).to_numpy(np.int64)
    owner = pd.Categorical(frame["hospital"], list(HOSPITALS)).codes.astype(np.int64)
    numbers = frame.drop(columns=["num", "hospital"])
    raw = pd.get_dummies(numbers, columns=["cp", "restecg"], drop_first=True, dtype=np.float64).to_numpy(np.float64)
    test = _test_rows(y, owner)
    x = np.empty_like(raw)
    for hospital in range(len(HOSPITALS)):
        own = owner == hospital
        x[own] = _scaled(raw[own], raw[own & ~test])
    pool = Pool(
        x.astype(np.float32),
        y,
        classes=2,
        owner=owner,
        owners=tuple(HOSPITALS),
        test=test,
        labels=DIAGNOSES,
        kind="binary",
    )
    if not pooled:
        return pool
    x[~test] = _scaled(raw[~test], raw[~test])
    rows = np.concatenate([np.tile(np.flatnonzero(~test), len(HOSPITALS)), np.flatnonzero(test)])
    holder = np.concatenate([np.repeat(np.arange(len(HOSPITALS)), (~test).sum()), owner[test]])
    return replace(replace(pool, x=x.astype(np.float32)).subset(rows), owner=holder)


def _test_rows(y: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Split each hospital's rows by class where each class has more than two: Switzerland has one row without disease."""
    from sklearn.model_selection import train_test_split

    test = np.zeros(len(y), bool)
    for hospital in range(len(HOSPITALS)):
        rows = np.flatnonzero(owner == hospital)
        classes = y[rows] if np.bincount(y[rows], minlength=2).min() > 2 else None
        _, held_out = train_test_split(np.arange(len(rows)), **SPLIT, stratify=classes)
        test[rows[held_out]] = True
    return test


def _scaled(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return (x - seen.mean(0)) / (seen.std(0, ddof=1) + 1e-9)
