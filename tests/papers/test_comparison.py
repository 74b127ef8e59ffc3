"""Measured beside published."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import spearmanr

from fedtailor.papers.comparison import Comparison, MeasuredCell, comparison_of
from fedtailor.papers.grid import RunGrid
from fedtailor.papers.presets import find
from fedtailor.papers.reproduction import ranks


def comparison(tmp_path, measured: dict[str, float], column: str = "CIFAR10, Dir 0.1") -> Comparison:
    preset = find("pgfedsplit/table3")
    preset = replace(preset, cells=tuple(c for c in preset.cells if c.column == column))
    entries = [MeasuredCell(c, (measured[c.row],) if c.row in measured else (), ()) for c in preset.cells]
    return Comparison(preset, "shrunk", entries, RunGrid(preset, tmp_path))


def test_spearman_and_ranks_agree_with_scipy_and_with_the_eye(tmp_path):
    measured = {"Local": 80.0, "FedAvg": 40.0, "FedRep": 80.0, "FedPer": 85.0, "PGFedSplit": 90.0}
    found = comparison(tmp_path, measured)
    pairs = [(e.measured, e.cell.published) for e in found.entries if e.measured is not None]
    assert found.reproduction.spearman["CIFAR10, Dir 0.1"] == pytest.approx(spearmanr(pairs).statistic, abs=1e-4)
    cells = found.reproduction.cells
    places = dict(zip([cell.method for cell in cells], ranks(cells), strict=True))
    assert places["PGFedSplit"][0] == 1
    assert places["Local"][0] == places["FedRep"][0] == 3
    assert max(published for _, published in places.values() if published) == len(measured)
    assert places["FedAMP"] == (None, None)


def test_two_rows_have_no_order_worth_a_correlation(tmp_path):
    assert comparison(tmp_path, {"Local": 1.0, "FedAvg": 2.0}).reproduction.spearman == {"CIFAR10, Dir 0.1": None}


def test_less_is_better_where_time_is_measured(tmp_path):
    preset = find("fedafk/table4")
    column = preset.columns[0]
    cells = [c for c in preset.cells if c.column == column][:2]
    entries = [MeasuredCell(cells[0], (5.0,), ()), MeasuredCell(cells[1], (3.0,), ())]
    cells = Comparison(preset, "", entries, RunGrid(preset, tmp_path)).reproduction.cells
    assert [measured for measured, _ in ranks(cells)] == [2, 1]


def test_gaps_have_their_reason_and_the_file_says_all(tmp_path):
    preset = find("pgfedsplit/fig4")
    grid = RunGrid(preset, tmp_path)
    found = comparison_of(grid, "", {grid.jobs[0].name: "no data"})
    assert [e.gap for e in found.entries] == ["no data", "not finished yet"]
    values = found.reproduction.model_dump()
    assert set(values) == {"preset", "title", "scale", "choices", "cells", "spearman"}
    first = values["cells"][0]
    assert (first["measured"], first["seeds"], first["gap"]) == (None, 0, "no data")


def test_parameters_are_counted_without_a_run(tmp_path):
    preset = find("heart/table2")
    grid = RunGrid(preset, tmp_path)
    assert grid.jobs == []
    assert all(e.measured for e in comparison_of(grid, "", {}).entries)
