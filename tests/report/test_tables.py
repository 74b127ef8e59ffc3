"""The comparison table says what the folders hold, and hides no run."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from fedtailor.errors import FedTailorError
from fedtailor.report.material import load_material
from fedtailor.report.results import read_results
from fedtailor.report.sections import comparison_sheets
from fedtailor.report.tables import comparison_numbers, comparison_table


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
    assert sheet.strong == "fedrep"


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
    sheet, rows = comparison(tmp_path, "fedavg")
    assert (rows["fedavg"]["against the baseline"], sheet.strong) == ("baseline", "fedavg")
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
    console.print(comparison_table(read_results(tmp_path)))
    (row,) = (line for line in console.file.getvalue().splitlines() if "pgfedsplit" in line)
    assert "74.00" in row
    assert "pgd_steps=2" in console.file.getvalue()
    assert "…" not in console.file.getvalue()
