"""The comparison table says what the folders hold, and hides no run."""

from __future__ import annotations

import csv
import io
import re

import pytest
from rich.console import Console

from fedtailor.analysis.results import read_results
from fedtailor.errors import FedTailorError
from fedtailor.experiment.lock import locked
from fedtailor.report.material import load_material
from fedtailor.report.page import page, section_text
from fedtailor.report.sections import Section, sections
from fedtailor.report.sheets import Best, as_latex, as_markdown, as_rich
from fedtailor.report.tables import brief_sheet, comparison_numbers, comparison_sheets


def comparison(tmp_path, baseline=""):
    (sheet,) = comparison_sheets(load_material([tmp_path], baseline))
    return sheet, {row[0]: dict(zip(sheet.header, row, strict=True)) for row in sheet.rows}


def test_means_and_deviations_over_seeds(make_run, tmp_path):
    for seed, last in enumerate((0.7, 0.9)):
        make_run(f"a{seed}", f"seed={seed}", "method=fedrep", accuracy=[0.95, last])
        make_run(f"b{seed}", f"seed={seed}", "method=local", accuracy=[0.5, 0.5], size=0)
    sheet, rows = comparison(tmp_path)
    assert rows["fedrep"] == {
        "method": "fedrep",
        "runs": "2",
        "accuracy (mean of clients)": "79.00 ± 10.00",
        "accuracy (pooled)": "80.00 ± 10.00",
        "best round (chosen on test data)": "95.00 ± 0.00",
        "worst decile": "60.00 ± 0.00",
        "spread of clients": "8.16 ± 0.00",
        "bytes per round": "2.0 kB",
        "seconds per round": "1",
        "against the best": "best",
    }
    assert rows["local"]["against the best"] == "p = 0.205 (2 seeds)"
    assert any("paired t-test" in note and "Holm" in note for note in sheet.notes)


def test_unfinished_and_empty_runs_are_named(make_run, tmp_path):
    make_run("a", "method=fedavg")
    make_run("b", "method=fedrep", "rounds=9", accuracy=[0.9, 0.9], state="failed")
    make_run("c", "method=local", "rounds=9", accuracy=[], state="interrupted")
    sheet, rows = comparison(tmp_path)
    failed = next(row for name, row in rows.items() if name.startswith("fedrep"))
    assert failed["runs"] == "1 (failed after round 2 of 9)"
    assert failed["against the best"] == "—"
    assert any("local, seed 0 (interrupted after round 0 of 9)" in note for note in sheet.notes)


def test_a_chosen_baseline(make_run, tmp_path):
    make_run("a", "method=fedavg", accuracy=[0.5])
    make_run("b", "method=fedrep", accuracy=[0.9], clients=[0.7, 0.8, 0.9])
    _, rows = comparison(tmp_path, "fedavg")
    assert rows["fedavg"]["against the baseline"] == "baseline"
    assert rows["fedrep"]["against the baseline"] == "p = 0.250 (3 clients)"
    with pytest.raises(FedTailorError, match="Did you mean 'fedavg'"):
        load_material([tmp_path], "fedavgg")


def test_numbers_for_programs(make_run, tmp_path):
    make_run("a", "method=fedavg", accuracy=[0.5])
    make_run("b", "method=fedrep", accuracy=[0.75], state="running")
    first, second = csv.DictReader(io.StringIO(comparison_numbers(load_material([tmp_path]))))
    assert (first["method"], second["method"]) == ("fedavg", "fedrep")
    assert float(second["accuracy (pooled)"]) == 0.75
    assert (second["finished"], second["p"], first["bytes per round"]) == ("0", "", "2000.0")


def test_one_unreadable_run_does_not_hide_the_others(make_run, tmp_path):
    make_run("a")
    (make_run("b") / "metrics.jsonl").write_text("{}\n")
    material = load_material([tmp_path])
    assert len(material.results) == 1
    assert "damaged" in material.unreadable[0]


def test_long_options_leave_room_for_the_numbers_in_a_narrow_terminal(make_run, tmp_path):
    options = ("method.akt_steps=5", "method.akt_batch=64", "method.pgd_steps=2", "method.hda=false")
    make_run("a", "method=heart", *options, accuracy=[0.5, 0.25])
    make_run("b", "method=heart", accuracy=[0.5, 0.5])
    make_run("c", "method=pgfedsplit", accuracy=[0.5, 0.75])
    console = Console(width=80, file=io.StringIO())
    console.print(as_rich(brief_sheet(read_results(tmp_path))))
    (row,) = (line for line in console.file.getvalue().splitlines() if "pgfedsplit" in line)
    assert "74.00" in row
    assert "pgd_steps=2" in console.file.getvalue()
    assert "…" not in console.file.getvalue()


def bold_cells(text, opening):
    """The rows of a rendered table, with the columns that are set in bold."""
    return {
        cells[0].strip(" |"): [k for k, cell in enumerate(cells) if opening in cell]
        for cells in (line.strip("| \\").split(" | " if "|" in line else " & ") for line in text.splitlines())
        if len(cells) > 5
    }


@pytest.mark.parametrize("baseline", ["", "fedavg"])
def test_methods_are_sorted_and_the_best_cell_of_each_column_is_bold_in_every_format(make_run, tmp_path, baseline):
    """With a baseline too, which once was set in bold however bad it was."""
    make_run("a", "method=fedavg", accuracy=[0.5], clients=[0.5, 0.5, 0.5], size=10)
    make_run("b", "method=fedrep", accuracy=[0.7], clients=[0.2, 0.7, 0.8])
    make_run("c", "method=fedper", accuracy=[0.9], clients=[0.6, 0.7, 0.8])
    sheet, _ = comparison(tmp_path, baseline)
    assert [row[0] for row in sheet.rows] == ["fedper", "fedrep", "fedavg"]
    quality, costs = [2, 3, 4, 5], [6, 7]  # the spread is a cost: less is better; all took equally long
    expected = {"fedper": quality, "fedrep": [], "fedavg": costs}
    assert {k: v for k, v in bold_cells(as_markdown(sheet), "**").items() if k in expected} == expected
    assert {k: v for k, v in bold_cells(as_latex(sheet), r"\textbf{").items() if k in expected} == expected
    html = section_text(Section("a", "b", sheets=[sheet])).partition("<tbody>")[2]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in html.split("</tr>")[:3]]
    assert {row[0]: [k for k, cell in enumerate(row) if "<strong>" in cell] for row in rows} == expected
    cells = [[cell.style == "bold" for cell in column._cells] for column in as_rich(sheet).columns]
    assert {sheet.rows[i][0]: [k for k, c in enumerate(cells) if c[i]] for i in range(3)} == expected


def test_a_run_under_way_is_never_the_best(make_run, tmp_path):
    running = make_run(
        "a", "method=fedavg", "rounds=9", accuracy=[0.99, 0.99], clients=[0.9, 0.9, 0.9], state="running"
    )
    with locked(running):
        (alone,) = comparison_sheets(load_material([running]))
        assert alone.rows[0][1] == "1 (running after round 2 of 9)"
        assert alone.rows[0][-1] == "—"
        make_run("b", "method=fedrep", "rounds=9", accuracy=[0.5])
        make_run("c", "method=local", "rounds=9", accuracy=[0.4])
        sheet, rows = comparison(tmp_path)
        brief = brief_sheet(read_results(tmp_path))
    assert [row[0] for row in sheet.rows] == ["fedrep", "local", "fedavg"]
    assert not any(isinstance(cell, Best) for cell in rows["fedavg"].values())
    assert rows["fedrep"]["against the best"] == "best"
    assert brief.rows[-1][0] == "fedavg (running after round 2 of 9)"
    assert not any(isinstance(cell, Best) for cell in brief.rows[-1])
    text = page(sections(load_material([tmp_path]), "x"))
    assert "Highest mean accuracy of clients of the finished methods: fedrep, 49.00 %." in text
