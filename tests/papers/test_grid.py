"""A grid does each run once, goes on after a kill, and survives a run that cannot be done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedtailor import Config, FedTailorError
from fedtailor.experiment.run import Stop
from fedtailor.papers.estimate import estimate, probe, timed
from fedtailor.papers.grid import PRELOADED, Job, RunGrid, carry_on, carry_out


def numbers(job: Job) -> list[str]:
    """The metrics of a run without its times."""
    lines = (job.folder / "metrics.jsonl").read_text().splitlines()
    return [line.partition('"seconds_training"')[0] for line in lines]


@pytest.fixture
def jobs(ablation, tmp_path) -> list[Job]:
    return RunGrid(ablation, tmp_path).jobs


def test_each_run_is_an_ordinary_folder_and_is_done_once(jobs):
    first = jobs[0]
    carry_on(first)
    assert first.finished
    assert not (first.folder / "checkpoints").exists()
    written = (first.folder / "metrics.jsonl").stat().st_mtime_ns
    done = carry_out(jobs[:1], 1, lambda progress: None, Stop(), {})
    assert not done.gaps
    assert (first.folder / "metrics.jsonl").stat().st_mtime_ns == written


def test_what_the_fork_server_imports_exists():
    assert all(find_spec(name) for name in PRELOADED)  # a fork server passes over a name that it cannot import


def test_an_interrupted_run_goes_on_to_the_same_numbers(jobs, tmp_path):
    whole, broken = jobs[0], replace(jobs[0], folder=tmp_path / "cells" / "broken")
    carry_on(whole)
    carry_on(broken, Stop(asked=True))
    assert (broken.begun, broken.finished, broken.done) == (True, False, 1)
    carry_on(broken)
    assert numbers(broken) == numbers(whole)


def test_what_was_left_before_the_config_was_written_is_no_obstacle(jobs):
    jobs[0].folder.mkdir(parents=True)
    (jobs[0].folder / "config.toml.draft").touch()
    carry_on(jobs[0])
    assert jobs[0].finished


def test_a_run_that_cannot_be_done_leaves_a_gap_and_the_others_go_on(jobs, tmp_path):
    impossible = replace(jobs[1], overrides=(*jobs[1].overrides, "data=cifar10", f"data.root={tmp_path}"))
    done = carry_out([impossible, jobs[0]], 2, lambda progress: None, Stop(), {})
    assert jobs[0].finished
    assert "fedtailor data get cifar10" in done.gaps[impossible.name]


class Timed:
    """A simulation whose every evaluation takes a second, and nothing else any time."""

    def __init__(self, *anything, **settings):
        self.outcomes = {}

    def step(self):
        return {"seconds_training": 0.0, "seconds_communication": 0.0, "seconds_evaluation": 1.0}


@pytest.mark.parametrize(("words", "evaluations"), [((), 4), (("eval_closing=each",), 3 + 25), (("method=fedavg",), 3)])
def test_the_estimate_counts_the_evaluations_of_closing_steps(monkeypatch, words, evaluations):
    monkeypatch.setattr("fedtailor.papers.estimate.Simulation", Timed)
    monkeypatch.setattr("fedtailor.papers.estimate.timed", lambda work: (work(), 1.0))
    config = Config.load(words=["data=digits", "method=fedavg-ft", "rounds=3", *words])
    assert probe(config, config.federation()) == evaluations


def test_time_without_a_core_is_not_counted():
    done, core = timed(lambda: time.sleep(0.05) or "done")
    assert done == "done"
    assert core < 0.5


def test_the_estimate_finds_missing_data_before_anything_runs(jobs, tmp_path):
    impossible = replace(jobs[1], overrides=(*jobs[1].overrides, "data=cifar10", f"data.root={tmp_path}"))
    found = estimate([impossible, *jobs[2:]])
    assert "fedtailor data get cifar10" in found.gaps[impossible.name]
    assert set(found.seconds) == {job.name for job in jobs[2:]}
    assert found.probes == 1  # both are of one family
    assert 0 < found.total(2) <= found.total(1) < 60


def test_a_folder_of_other_settings_is_refused(ablation, tmp_path):
    grid = RunGrid(ablation, tmp_path)
    carry_on(grid.jobs[0])
    grid.check()
    cells = tuple(
        replace(c, parts=tuple(p._replace(overrides=(*p.overrides, "rounds=1")) for p in c.parts))
        for c in ablation.cells
    )
    with pytest.raises(FedTailorError, match="other settings"):
        RunGrid(replace(ablation, cells=cells), tmp_path).check()


@pytest.mark.slow
def test_kill_takes_the_runs_along_and_the_same_command_goes_on(tmp_path):
    overrides = [
        "clients=3",
        "net=mlp",
        "net.hidden=[8]",
        "data=digits",
        "partition=iid",
        "batch=64",
        "checkpoint_every=1",
    ]
    command = [sys.executable, "-m", "fedtailor", "reproduce", "pgfedsplit/fig5", *overrides]
    command += ["--scale", "rounds=60,epochs=1,seeds=1,methods=wo-apa", "--out", str(tmp_path)]
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        killed = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        checkpoint = _wait_for(lambda: next((tmp_path / "cells").glob("*/checkpoints/round-*"), None), killed)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    assert checkpoint is not None, log.read_text()
    cell = checkpoint.parent.parent
    time.sleep(1)
    metrics = cell / "metrics.jsonl"
    before = len(metrics.read_text().splitlines())
    time.sleep(0.5)
    assert len(metrics.read_text().splitlines()) == before < 60  # nobody writes any more
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(metrics.read_text().splitlines()) == 60
    assert (tmp_path / "table.md").exists()
    assert (tmp_path / "curves.svg").exists()


def _wait_for(look: Callable[[], Path | None], process: subprocess.Popen) -> Path | None:
    """What is looked for, or None if the process ends before it comes."""
    while process.poll() is None:
        if found := look():
            return found
        time.sleep(0.05)
    return None
