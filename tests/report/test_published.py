"""Published beside measured, and never without the scale it was measured at."""

from __future__ import annotations

import json

import pytest

from fedtailor.errors import FedTailorError
from fedtailor.papers.reproduction import ReproducedCell, Reproduction
from fedtailor.report.interactive import plotly_chart
from fedtailor.report.material import load_material
from fedtailor.report.page import page, section_text
from fedtailor.report.reproduction import agreement_chart, column_sheets, reproduction_csv, reproduction_markdown
from fedtailor.report.sections import sections
from fedtailor.report.tables import comparison_numbers, comparison_sheets

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
    (found,) = load_material([folder]).reproductions.values()
    (sheet,) = column_sheets(found)
    assert sheet.rows == [
        ("FedAvg", "70.00", "80.00", "-10.00", "3", "3"),
        ("FedRep", "90.50", "85.00", "+5.50", "1", "2"),
        ("FedAH", "88.00", "90.00", "-2.00", "2", "1"),
        ("Local", "gap", "60.00", "", "", ""),
        ("Ours", "99.00", "", "", "", ""),
    ]
    assert any("correlation 0.50" in note for note in sheet.notes)
    diagonal, dots = plotly_chart(agreement_chart(found))["data"]
    assert (dots["x"], dots["y"]) == ([80.0, 85.0, 90.0], [70.0, 90.5, 88.0])
    assert diagonal["x"] == diagonal["y"] == [70.0, 90.5]


@pytest.mark.parametrize(
    "named",
    [{"measure": "seconds-per-round"}, {"metric": "seconds per round"}, {"metric": "seconds a round"}],
    ids=["measure", "title", "title of version 0.1"],
)
def test_less_is_better_in_a_column_of_costs_on_the_page_and_in_every_table(named, folder):
    """The page, the Markdown and the CSV table once ranked such a column in opposite orders."""
    costs = {"FedAvg": (3.0, 5.0), "FedRep": (2.0, 9.0), "FedAH": (9.0, 1.0)}
    cells = [
        ReproducedCell(method=m, column="time", measured=ours, published=theirs, **named)
        for m, (ours, theirs) in costs.items()
    ]
    found = Reproduction(preset="x/table1", title="Table 1", cells=cells)
    ranks = {"FedAvg": ("2", "2"), "FedRep": ("1", "3"), "FedAH": ("3", "1")}
    assert {row[0]: tuple(row[4:]) for row in column_sheets(found)[0].rows} == ranks
    for method, (ours, theirs) in ranks.items():
        assert f"| {ours} | {theirs} |" in next(li for li in reproduction_markdown(found).splitlines() if method in li)
        assert f",{ours},{theirs}," in next(li for li in reproduction_csv(found).splitlines() if method in li)
    (folder / "reproduction.json").write_text(found.model_dump_json())
    shown = page(sections(load_material([folder]), "x"))
    assert "<td>1</td><td>3</td></tr>" in shown.partition("FedRep</td>")[2][:200]


@pytest.mark.parametrize("named", ["", "cells/fedavg"])
def test_the_scale_stands_beside_every_number(folder, named):
    """Even if only one of its runs is reported on."""
    material = load_material([folder / named])
    for section in sections(material, "x"):
        if section.charts:
            assert SCALE in section_text(section), section.title
    assert all(any(SCALE in note for note in sheet.notes) for sheet in comparison_sheets(material))
    assert all(SCALE in line for line in comparison_numbers(material).splitlines()[1:])


def test_a_file_that_is_no_reproduction_is_told(folder):
    (folder / "reproduction.json").write_text('{"preset": "x", "title": "t", "cells": [{"method": 3}]}')
    with pytest.raises(FedTailorError, match=r"reproduction.json' is not a reproduction: cells.0.method"):
        load_material([folder])
