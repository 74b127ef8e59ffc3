"""The tables of a reproduction."""

from __future__ import annotations

from fedtailor.papers.comparison import comparison_of
from fedtailor.papers.grid import RunGrid
from fedtailor.papers.presets import find
from fedtailor.report.reproduction import reproduction_csv, reproduction_markdown


def test_tables_say_the_scale_the_gaps_and_the_choices_and_escape_what_users_wrote(tmp_path):
    preset = find("fedsimsup/table1")
    grid = RunGrid(preset, tmp_path)
    reason = "a <b> | c\nsecond line"
    found = comparison_of(grid, "5 % of the samples", {job.name: reason for job in grid.jobs}).reproduction
    text = reproduction_markdown(found)
    assert text.count("Scale: 5 % of the samples.") == 3
    assert "- FEMNIST, Dir 0.1, ImageNet, Dir 0.1: a &lt;b&gt; \\| c second line" in text
    assert all(choice in text for choice in preset.choices)
    rows = reproduction_csv(found).splitlines()
    assert rows[0].startswith("column,method,measured")
    assert all("5 % of the samples" in row for row in rows[1:] if row.startswith('"'))
