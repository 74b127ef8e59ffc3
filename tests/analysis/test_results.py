"""Run folders read back in every state, and only the runs there are."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from fedtailor.analysis.results import find_runs, read_result, read_run
from fedtailor.data.description import Column, Description
from fedtailor.errors import FedTailorError
from fedtailor.experiment.lock import is_locked, locked
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.report.material import load_material
from fedtailor.report.page import section_text
from fedtailor.report.sections import sections


def test_runs_are_found_at_any_depth_and_each_once(make_run, tmp_path):
    deep, flat = make_run("study/cells/x"), make_run("study/y")
    os.symlink(flat, tmp_path / "same")
    assert find_runs([flat, tmp_path / "study", tmp_path / "same"]) == [flat, deep]


def test_a_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(FedTailorError, match="holds no run"):
        find_runs([tmp_path])
    with pytest.raises(FedTailorError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])


def test_the_last_accuracies_are_found_from_the_end(make_run):
    """Behind them: a round that only logged, a line cut short by a kill, letters of two bytes."""
    run = make_run("a", clients=[0.1, None, 0.3])
    with (run / "clients.jsonl").open("a") as file:
        file.write(
            json.dumps({"round": 4, "logged": {"0": {"größe": 1}}}, ensure_ascii=False) + '\n{"round": 5, "accur'
        )
    np.testing.assert_array_equal(read_run(run).clients(), [0.1, np.nan, 0.3])
    (run / "clients.jsonl").write_text("")
    assert len(read_run(run).clients()) == 0


def test_a_run_before_its_first_round_has_a_state_but_no_result(make_run):
    run = make_run("a", accuracy=[], state="failed")
    assert read_run(run).progress == "failed after round 0 of 1"
    with pytest.raises(FedTailorError, match="no finished round yet"):
        read_result(run)


def test_damaged_files_are_told(make_run):
    run = make_run("a")
    (run / "labels.json").write_text("[1]")
    assert read_run(run).labels is None
    (run / "metrics.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(FedTailorError, match=r"metrics.jsonl' is damaged"):
        read_run(run)
    (run / "config.toml").write_text('method = "fedavg"')
    with pytest.raises(FedTailorError, match=r"config\.toml. is damaged or not that of a run: method"):
        read_run(run)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("config.toml", 'name = "fedrep"', "name = 5"),
        ("config.toml", "seed = 0", 'seed = "x"'),
        ("metrics.jsonl", '"bytes_up": 1000', '"bytes_up": null'),
        ("metrics.jsonl", '"round": 1', '"round": {}'),
        ("metrics.jsonl", '"seconds_training": 0.5', '"seconds_training": []'),
    ],
)
def test_a_value_of_another_kind_is_told(make_run, file, old, new):
    damaged = make_run("a") / file
    assert old in damaged.read_text()
    damaged.write_text(damaged.read_text().replace(old, new))
    with pytest.raises(FedTailorError, match=rf"{file}. is damaged"):
        read_run(damaged.parent)


def test_damaged_lines_of_clients_are_told_or_passed_over(make_run):
    run = make_run("a")
    (run / "clients.jsonl").write_text('5\n{"round": 1, "phase": "round"}\n')
    assert len(read_run(run).clients()) == 0
    with pytest.raises(FedTailorError, match=r"clients\.jsonl. is damaged"):
        read_run(run).lines  # noqa: B018


def test_a_killed_run_is_not_running(make_run):
    """Its status.json says running for ever; the lock ended with the process."""
    run = make_run("a", "rounds=9", state="running")
    assert read_run(run).progress == "interrupted after round 3 of 9"
    with locked(run):
        assert read_run(run).progress == "running after round 3 of 9"
    assert RunFolder(run).state == "interrupted"
    assert read_run(make_run("b", state="failed")).state == "failed"


def test_who_only_looks_does_not_keep_the_lock(make_run):
    run = make_run("a", state="running")
    with locked(run):
        pass
    assert not is_locked(run)
    with locked(run):
        assert is_locked(run)


def test_clients_have_their_names_and_samples_from_the_table_where_there_are_no_labels(make_run):
    """As in a deployment, whose server does not see labels."""
    run = make_run("a", names=["Ulm", "Bonn", "Köln"], tested=(5, 6, 7))
    (run / "labels.json").unlink()
    assert list(read_run(run).client_names) == ["Ulm", "Bonn", "Köln"]
    assert read_run(run).samples("train").tolist() == [15, 18, 21]
    (run / "clients.csv").write_bytes(b"client,name,train_samples,test_samples\n0,\xff")
    assert list(read_run(run).client_names) == ["client 0", "client 1", "client 2"]
    assert np.isnan(read_run(run).samples("test")).all()


DESCRIBED = Description(
    (2,),
    2,
    "binary",
    "float32",
    columns=(
        Column("age", "number", mean=54.25, std=9.0, indicator=True),
        Column("<b>pain", "category", values=tuple("abcdefghi")),
    ),
    label="ill",
    labels=("no", "yes"),
    notes=("The column 'id' was left out.",),
)


def test_the_page_says_how_the_data_was_described(make_run):
    run = make_run("a")
    assert not any(s.title == "Data" for s in sections(load_material([run]), "x"))
    DESCRIBED.write(run / "description.json")
    (data,) = (s for s in sections(load_material([run]), "x") if s.title == "Data")
    (sheet,) = data.sheets
    assert sheet.rows[0] == ("age", "number", "mean 54.25, std 9; missing values are marked")
    assert sheet.rows[1] == ("<b>pain", "category", "9: a, b, c, d, e, f …")
    text = section_text(data)
    assert "The column &#39;id&#39; was left out." in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"columns": 5}', '{"columns": [{"kind": 1}]}', '{"notes": [[]]}', "\ud800", "NaN"]
)
def test_a_damaged_description_is_passed_over(make_run, text):
    run = make_run("a")
    (run / "description.json").write_bytes(text.encode(errors="surrogatepass"))
    assert read_run(run).description is None
    assert not any(s.title == "Data" for s in sections(load_material([run]), "x"))
