"""Published beside measured, and never without the scale it was measured at."""

from __future__ import annotations

import json

import pytest

from fedtailor.errors import FedTailorError
from fedtailor.report.beside import reproduction_chart, reproduction_sheet
from fedtailor.report.material import load_material
from fedtailor.report.sections import comparison_sheets, sections
from fedtailor.report.tables import comparison_numbers

SCALE = "20 of 200 rounds"
CELLS = [
    ("FedAvg", 80.0, 70.0),
    ("FedRep", 85.0, 90.5),
    ("FedAH", 90.0, 88.0),
    ("Local", 60.0, None),
    ("Ours", None, 99.0),
]


@pytest.fixture
def folder(make_run, tmp_path):
    make_run("study/cells/fedavg", "method=fedavg")
    make_run("study/cells/fedrep", "method=fedrep")
    cells = [
        {
            "method": m,
            "column": "Digits",
            "published": p,
            "measured": v,
            "seeds": 2,
            "metric": "best round, %",
            "runs": [],
        }
        for m, p, v in CELLS
    ]
    story = {"preset": "x/table1", "title": "Table 1", "scale": SCALE, "choices": ["lr 0.1"], "cells": cells}
    (tmp_path / "study" / "reproduction.json").write_text(json.dumps(story | {"spearman": {"Digits": 0.5}}))
    return tmp_path / "study"


def test_difference_and_rank_among_those_with_both(folder):
    (reproduction,) = load_material([folder]).reproductions
    sheet = reproduction_sheet(reproduction)
    assert [row[1:6] for row in sheet.rows] == [
        ("FedAvg", "80.00", "70.00", "−10.00", "3 → 3"),
        ("FedRep", "85.00", "90.50", "+5.50", "2 → 1"),
        ("FedAH", "90.00", "88.00", "−2.00", "1 → 2"),
        ("Local", "60.00", "—", "—", "—"),
        ("Ours", "—", "99.00", "—", "—"),
    ]
    assert any("Digits 0.50" in note for note in sheet.notes)
    assert any("lr 0.1" in note for note in sheet.notes)
    diagonal, dots = reproduction_chart(reproduction)["data"]
    assert (dots["x"], dots["y"]) == ([80.0, 85.0, 90.0], [70.0, 90.5, 88.0])
    assert diagonal["x"] == diagonal["y"] == [70.0, 90.5]


@pytest.mark.parametrize("named", ["", "cells/fedavg"])
def test_the_scale_stands_beside_every_number(folder, named):
    """Even if only one of its runs is reported on."""
    material = load_material([folder / named])
    for section in sections(material, "x"):
        if section.charts:
            assert SCALE in section.html, section.title
    assert all(any(SCALE in note for note in sheet.notes) for sheet in comparison_sheets(material))
    assert all(SCALE in line for line in comparison_numbers(material).splitlines()[1:])


def test_a_file_that_is_no_reproduction_is_told(folder):
    (folder / "reproduction.json").write_text('{"preset": "x", "title": "t", "cells": [{"method": 3}]}')
    with pytest.raises(FedTailorError, match=r"reproduction.json' is not a reproduction: cells.0.method"):
        load_material([folder])
