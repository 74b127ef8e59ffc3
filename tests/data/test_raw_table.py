"""Which columns of a messy table are used, and what is said about the others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedtailor import FedTailorError
from fedtailor.data.description import Column, Description
from fedtailor.data.raw_table import raw_rows, raw_table

N = 40


def frame(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"value": np.linspace(0, 1, N), **columns})


def names(found: pd.DataFrame, **options: object) -> list[str]:
    return [c.name for c in raw_table(found, (), **options).columns]  # type: ignore[arg-type]


def test_text_becomes_categories_and_missing_values_stay_missing():
    raw = raw_table(frame(sex=["m", None] * (N // 2), flag=[True, False] * (N // 2)), ())
    assert [(c.name, c.kind, c.values) for c in raw.columns] == [
        ("value", "number", ()),
        ("sex", "category", ("m",)),
        ("flag", "category", ("False", "True")),
    ]
    assert np.isnan(raw.x[1, 1])
    assert raw.notes == ()


def test_whole_numbers_name_the_same_category_with_and_without_missing_values():
    whole = raw_table(frame(cp=[1, 2] * (N // 2)), (), categories=["cp"]).columns[1]
    broken = raw_table(frame(cp=[1.0, np.nan, 2.0, 1.0] * (N // 4)), (), categories=["cp"]).columns[1]
    assert whole == broken == Column("cp", "category", ("1", "2"))


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("patient", [f"p{i}" for i in range(N)], "nearly every row has another text"),
        ("row", list(range(1000, 1000 + N)), "its numbers count the rows"),
        ("case_id", [7 * i for i in range(N)], "those of an identifier"),
        ("ward", ["A"] * N, "every row has the same value"),
        ("empty", [None] * N, "it is empty"),
    ],
)
def test_useless_columns_are_left_out_and_told(column, values, reason):
    found = raw_table(frame(**{column: values}), ())
    assert [c.name for c in found.columns] == ["value"]
    assert len(found.notes) == 1
    assert f"'{column}' is left out" in found.notes[0]
    assert reason in found.notes[0]


def test_who_names_a_column_gets_it():
    assert names(frame(row=range(N)), features=["row"]) == ["row"]
    assert names(frame(row=range(N)), numbers=["row"]) == ["value", "row"]
    assert names(frame(row=range(N), sex=["m", "f"] * (N // 2)), ignore=["sex"]) == ["value"]


def test_measurements_that_all_differ_are_no_identifiers():
    assert names(frame(weight=[3 * i for i in range(N)])) == ["value", "weight"]


@pytest.mark.parametrize(
    "dates",
    [
        [f"2024-01-{1 + i % 28:02d}" for i in range(N)],
        [f"{1 + i % 28}.3.2024 10:00" for i in range(N)],
        pd.date_range("2024-01-01", periods=N),
    ],
)
def test_dates_are_refused_with_advice(dates):
    with pytest.raises(FedTailorError, match=r"'seen' holds dates.*data\.ignore=seen.*data\.time=seen"):
        raw_table(frame(seen=dates), ())
    assert names(frame(seen=dates), ignore=["seen"]) == ["value"]


def test_numbers_with_some_text_are_refused_until_somebody_says_what_they_are():
    mixed = frame(chol=[*map(str, range(100, 100 + N - 1)), "?"])
    with pytest.raises(FedTailorError, match=r"1 texts such as '\?'.*data\.numbers=chol.*data\.categories=chol"):
        raw_table(mixed, ())
    found = raw_table(mixed, (), numbers=["chol"])
    assert np.isnan(found.x[-1, 1])
    assert found.x[0, 1] == 100
    assert "1 texts such as '?' are taken as missing" in found.notes[0]


def test_infinite_numbers_and_long_texts_are_refused():
    with pytest.raises(FedTailorError, match="'a' has infinite values"):
        raw_table(frame(a=[np.inf, *range(N - 1)]), ())
    with pytest.raises(FedTailorError, match="'a' holds long texts"):
        raw_table(frame(a=["x" * 300, "y"] * (N // 2)), ())


KNOWN = Description((5,), 2, columns=(Column("age", "number"), Column("sex", "category", ("f", "m"))))


def test_new_rows_are_read_by_name():
    new = pd.DataFrame({"sex": ["m", "f", None, "x"], "other": 1, "age": ["3", "4.5", 5, 6]})
    raw, warnings = raw_rows(new, KNOWN)
    assert np.array_equal(raw, [[3, 1], [4.5, 0], [5, np.nan], [6, -1]], equal_nan=True)
    assert len(warnings) == 1
    assert "'sex' has 1 values that training did not have, such as 'x'" in warnings[0]


def test_new_rows_that_do_not_fit_are_told():
    with pytest.raises(FedTailorError, match=r"no column 'age'.*Did you mean 'Age'"):
        raw_rows(pd.DataFrame({"Age": [1], "sex": ["m"]}), KNOWN)
    with pytest.raises(FedTailorError, match="'age' must hold numbers, but has 'old'"):
        raw_rows(pd.DataFrame({"age": ["old"], "sex": ["m"]}), KNOWN)
    _, warnings = raw_rows(pd.DataFrame({"age": [None], "sex": ["m"]}), KNOWN)
    assert "1 missing values, and had none in training" in warnings[0]
