"""The embedded Heart Disease data: byte for byte UCI's, and dealt as FLamby deals it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from fedtailor import Config, FedTailorError
from fedtailor.data.pool import Pool
from fedtailor.data.sources.heart import CATEGORIES, Heart, patients, recorded

MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}


def read(**options) -> Pool:
    return Heart(protocol="flamby", **options).read(Path())


@pytest.mark.parametrize("name", MD5)
def test_the_files_are_uci_s(name):
    folder = files("fedtailor.data").joinpath("heart")
    assert hashlib.md5(folder.joinpath(f"processed.{name}.data").read_bytes()).hexdigest() == MD5[name]
    assert MD5[name] in folder.joinpath("README.md").read_text()


def test_all_patients_with_words_for_codes_and_nothing_lost():
    frame, numbers = patients(), recorded()
    assert frame["hospital"].value_counts().to_dict() == {
        "Cleveland": 303,
        "Hungarian": 294,
        "VA": 200,
        "Switzerland": 123,
    }
    assert frame["disease"].value_counts().to_dict() == {"disease": 509, "no disease": 411}
    first = frame.iloc[0]  # 63,1,1,145,233,1,2,150,0,2.3,3,0,6,0
    assert (first["age"], first["sex"], first["cp"]) == (63, "male", "typical angina")
    assert (first["slope"], first["thal"], first["disease"]) == ("downsloping", "fixed defect", "no disease")
    for column, names in CATEGORIES.items():
        assert (frame[column].isna() == numbers[column].isna()).all()
        assert set(frame[column].dropna()) == set(filter(None, names))


def test_the_benchmark_s_rows_features_and_split():
    pool = read()
    assert (pool.x.shape, pool.kind, pool.classes) == ((740, 13), "binary", 2)
    assert pool.owners == ("Cleveland", "Hungarian", "Switzerland", "VA")
    assert np.bincount(pool.owner).tolist() == [303, 261, 46, 130]
    assert np.bincount(pool.owner[pool.test]).tolist() == [104, 89, 16, 45]
    for hospital in range(4):
        seen = pool.x[(pool.owner == hospital) & ~pool.test].astype(np.float64)
        np.testing.assert_allclose(seen.mean(0), 0, atol=1e-6)
        spread = seen.std(0, ddof=1)
        assert np.all(np.isclose(spread, 1, atol=1e-5) | (spread == 0))  # a constant column stays 0
    ages = recorded()["age"][:303]
    rows = pool.owner == 0
    seen = ages[~pool.test[rows]]
    np.testing.assert_allclose(pool.x[rows, 0], (ages - seen.mean()) / seen.std(), rtol=1e-6, atol=1e-6)


def test_pooled_every_hospital_trains_on_all_rows_and_is_tested_on_its_own():
    own, pooled = read(), read(pooled=True)
    assert np.bincount(pooled.owner[~pooled.test]).tolist() == [486] * 4
    assert np.array_equal(pooled.x[pooled.test], own.x[own.test])
    first, last = (pooled.x[(pooled.owner == i) & ~pooled.test].astype(np.float64) for i in (0, 3))
    assert np.array_equal(first, last)
    np.testing.assert_allclose(first.mean(0), 0, atol=1e-6)
    with pytest.raises(FedTailorError, match=r"data\.protocol=flamby"):
        Config.load(words=["data=heart", "data.pooled=true"])


def test_four_hospitals_by_name_alone():
    config = Config.load(words=["data=heart", "data.protocol=flamby"])
    federation = config.federation()
    assert [(c.name, len(c.train), len(c.test)) for c in federation.clients] == [
        ("Cleveland", 199, 104),
        ("Hungarian", 172, 89),
        ("Switzerland", 30, 16),
        ("VA", 85, 45),
    ]
    assert (config.completed(federation).net.name, federation.labels) == ("mlp", ("no disease", "disease"))


def test_all_patients_as_a_table_with_missing_values(tmp_path):
    federation = Config.load(words=["data=heart", f"data.root={tmp_path}"]).federation()
    assert sum(len(c.train) + len(c.test) for c in federation.clients) == 920
    assert federation.labels == ("no disease", "disease")
    sick = sum(int(part.y.sum()) for c in federation.clients for part in (c.train, c.test))
    assert sick == 509  # class 1 is the disease
    columns = {column.name: column for column in federation.description.columns}
    assert columns["chol"].indicator
    assert columns["thal"].values == ("fixed defect", "normal", "reversible defect")
    assert "hospital" not in columns
