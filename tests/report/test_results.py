"""Run folders read back in every state, and only the runs there are."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from fedtailor.errors import FedTailorError
from fedtailor.report.results import find_runs, read_result, read_run


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
