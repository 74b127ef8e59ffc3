"""`fedtailor data describe`: a description of data, for people to check, edit and give to sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtailor.cli.app import app
from fedtailor.data.description import Description
from fedtailor.errors import FedTailorError


def describe(*words: str):
    return CliRunner().invoke(app, ["data", "describe", *words], catch_exceptions=False)


@pytest.fixture
def table(tmp_path) -> Path:
    rows = [f"p{k:03},{('I', 'II')[k % 2]},{50 + k % 5},{'dead' if k % 3 else 'alive'}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["patient,stage,age,outcome", *rows]))
    return tmp_path


def test_a_table_is_described_and_what_is_left_out_is_told(table):
    file = table / "d.json"
    answer = describe("data=table", f"data.path={table / 't.csv'}", "data.label=outcome", "-o", str(file))
    assert answer.exit_code == 0, answer.output
    found = Description.load(file)
    assert [(c.name, c.kind, c.values) for c in found.columns] == [
        ("stage", "category", ("I", "II")),
        ("age", "number", ()),
    ]
    assert (found.label, found.labels) == ("outcome", ("alive", "dead"))
    said = " ".join(answer.output.split())
    assert "Column 'patient' is left out" in said
    assert "stage: category, 2 values" in said
    assert "p00" not in file.read_text()
    with pytest.raises(FedTailorError, match="is there already"):
        describe("data=table", f"data.path={table / 't.csv'}", "data.label=outcome", "-o", str(file))


def test_a_description_can_be_edited_without_counting(table):
    file = table / "d.json"
    describe("data=table", f"data.path={table / 't.csv'}", "data.label=outcome", "-o", str(file))
    plain = json.loads(file.read_text())
    plain["columns"][0]["values"] += ["III", "IV"]
    plain["columns"][1]["indicator"] = True
    plain["labels"].append("lost")
    file.write_text(json.dumps(plain))
    found = Description.load(file)
    assert (found.shape, found.classes) == ((4 + 2 + 2,), 3)
    for wrong, said in (
        ({**plain, "columns": [{}]}, "a column has the fields"),
        ({**plain, "columns": [*plain["columns"], plain["columns"][0]]}, "two of its columns have the same name"),
        ({**plain, "labels": "dead"}, "its labels is not a list"),
        ({**plain, "colums": []}, "has the fields"),
        ([], "has the fields"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(FedTailorError, match=said):
            Description.load(file)
