"""What a description learns, how it encodes, and what it refuses to read."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from fedtailor import Federation, FedTailorError
from fedtailor.data.description import Column, Description
from fedtailor.data.encode import described, encoded_samples
from fedtailor.data.sources.table import Table, table_pool

FRAME = pd.DataFrame(
    {
        "age": [40.0, np.nan, 60.0, 1000.0],
        "stage": ["I", "II", None, "IV"],
        "y": ["a", "b", "a", "b"],
    }
)
TRAIN = np.array([0, 1, 2])  # the last row is a test row


def test_it_is_learned_from_training_rows_only():
    pool = table_pool(FRAME, Table(label="y"))
    found = described(pool, TRAIN)
    age, stage = found.columns
    assert (age.mean, age.std, age.indicator) == (50.0, 10.0, True)
    assert stage.values == ("I", "II")  # IV is in the test row alone
    expected = [
        [-1, 0, 1, 0, 0, 0],  # age, age is missing; I, II, missing, unseen
        [0, 1, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [95, 0, 0, 0, 0, 1],
    ]
    assert encoded_samples(pool, found).tolist() == expected
    assert found.shape == (6,)


def test_a_number_without_missing_training_values_has_no_indicator():
    column = described(table_pool(FRAME, Table(label="y")), np.array([0, 2])).columns[0]
    assert (column.indicator, column.width) == (False, 1)


def test_a_federation_is_encoded_by_the_description_it_carries():
    frame = pd.concat([FRAME.assign(site=s) for s in "pq"] * 5, ignore_index=True)
    federation = Federation.from_table(frame, client="site", label="y")
    ages = torch.cat([c.train.x[:, :2] for c in federation.clients])
    known = ages[ages[:, 1] == 0][:, 0]
    assert known.mean().abs() < 1e-5
    assert known.std(correction=0) == pytest.approx(1, abs=1e-5)


def test_it_survives_json_and_a_file(tmp_path):
    found = described(table_pool(FRAME, Table(label="y")), TRAIN)
    found.write(tmp_path / "d.json")
    assert Description.load(tmp_path / "d.json") == found
    text = Description((5,), 2, tokens=("a", "b"), vocabulary=4, dtype="int32", labels=("no", "yes"))
    assert Description.read(json.loads(json.dumps(text.plain()))) == text


GOOD = described(table_pool(FRAME, Table(label="y")), TRAIN).plain()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("format", 2, "format"),
        ("shape", [7], "shape is not that of the features"),
        ("shape", [2**40], "shape"),
        ("classes", 2**34, "classes"),
        ("kind", "guess", "task is none of"),
        ("dtype", "object", "type"),
        ("labels", ["a"], "labels"),
        ("labels", ["a", "a"], "same name"),
        ("labels", ["a", "\x1b[2J"], "control"),
        ("mean", [float("nan")], "mean"),
        ("std", [0.0], "std"),
        ("vocabulary", -1, "vocabulary"),
        ("columns", {}, "columns"),
        ("notes", [3], "note"),
    ],
)
def test_a_lie_in_a_field_is_named(field, value, says):
    with pytest.raises(ValueError, match=says):
        Description.read(GOOD | {field: value})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "x" * 300, "name"),
        ("kind", "date", "number or a category"),
        ("indicator", 1, "indicator"),
        ("mean", float("nan"), "mean"),
        ("std", 0.0, "std"),
        ("std", float("inf"), "std"),
        ("values", "abc", "values"),
    ],
)
def test_a_lie_in_a_column_is_named(field, value, says):
    plain = copy.deepcopy(GOOD)
    plain["columns"][0][field] = value
    with pytest.raises(ValueError, match=says):
        Description.read(plain)


def test_a_wrong_file_is_refused_in_words(tmp_path):
    (tmp_path / "d.json").write_text("[1, 2")
    with pytest.raises(FedTailorError, match=r"d\.json' is not a description"):
        Description.load(tmp_path / "d.json")
    with pytest.raises(FedTailorError, match="cannot be read"):
        Description.load(tmp_path / "none.json")


def table(*columns: Column) -> Description:
    return Description((sum(c.width for c in columns),), 2, columns=columns)


AGE, STAGE = Column("age", "number"), Column("stage", "category", ("I", "II", "III"))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (table(STAGE, AGE), ""),  # the order of columns means nothing
        (table(replace(AGE, mean=7.0, indicator=True), STAGE), ""),
        (table(AGE), "no column 'stage'"),
        (table(AGE, STAGE, Column("sex", "number")), "the column 'sex', which is not expected"),
        (table(AGE, Column("stage", "number")), "'stage' is a number where a category was expected"),
        (table(AGE, replace(STAGE, values=("II", "IV"))), "the value 'IV', where 'I', 'II', 'III' were expected"),
        (Description((5,), 2), "arrays where table was expected"),
    ],
)
def test_a_misfit_is_told_by_name(other, says):
    found = table(AGE, STAGE).misfit(other)
    assert says in found
    assert bool(found) == bool(says)


def test_columns_are_matched_by_name_not_by_place():
    federation = Federation.from_table(FRAME.assign(site="p"), client="site", label="y", test_share=0.0)
    turned = FRAME.assign(site="p")[["stage", "y", "age", "site"]]
    again = Federation.from_table(turned, client="site", label="y", test_share=0.0, description=federation.description)
    assert torch.equal(federation.clients[0].train.x, again.clients[0].train.x)


def test_a_column_that_is_constant_at_a_new_client_is_read_as_the_federation_reads_it():
    rows = pd.concat([FRAME.assign(site="p")] * 8, ignore_index=True)
    known = Federation.from_table(rows, client="site", label="y").description
    alike = rows.assign(stage="I", age=50.0, site="q")
    joined = Federation.from_table(alike, client="site", label="y", description=known)
    stage = known.columns[0].width
    assert (joined.clients[0].train.x[:, stage] == 1).all()  # I


def test_other_columns_labels_and_tasks_are_refused_where_a_description_is_given():
    rows = FRAME.assign(site="p")
    known = Federation.from_table(rows, client="site", label="y").description

    def read(frame: pd.DataFrame, **options: object) -> None:
        Federation.from_table(frame, client="site", label="y", description=known, **options)  # type: ignore[arg-type]

    with pytest.raises(FedTailorError, match="no column 'stage'"):
        read(rows.drop(columns="stage"))
    with pytest.raises(FedTailorError, match="'age' is a category, but a number"):
        read(rows.assign(age=["old", "new", "old", "new"]))
    with pytest.raises(FedTailorError, match="label 'c', which is not known"):
        read(rows.assign(y=["a", "b", "c", "a"]))
    with pytest.raises(FedTailorError, match=r"label '0\.5', which is not known"):
        read(rows.assign(y=[0.5, 1.5, 2.5, 3.5]))
