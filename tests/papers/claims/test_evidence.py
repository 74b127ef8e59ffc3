"""A small claim from its runs to its verdict, on digits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.experiment.run import Stop
from fedtailor.papers.claims.claim import jobs_of
from fedtailor.papers.claims.evidence import evidence_of
from fedtailor.papers.grid import carry_on


def last_scores(folder: Path) -> np.ndarray:
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    return np.array([line["accuracy"] for line in lines if "accuracy" in line][-1], dtype=float)


def test_a_claim_that_is_true_holds_and_its_opposite_does_not(claim, opposite, ran):
    (for_it,), (against_it,) = (evidence_of([c], ran).claims for c in (claim, opposite))
    assert (for_it.verdict, against_it.verdict) == ("holds", "does not")
    assert for_it.comparisons[0].lead == pytest.approx(-against_it.comparisons[0].lead)


def test_numbers_are_those_of_the_run_folders(claim, ran):
    found = evidence_of([claim], ran).claims[0].comparisons[0]
    leads = []
    for seed in range(5):
        one, other = (last_scores(ran / "cells" / f"tiny-{name}-s{seed}") for name in ("fedper", "fedavg"))
        leads.append(100 * np.mean(one - other))
    reach = 2.7764451 * np.std(leads, ddof=1) / 5**0.5
    assert found.leads == pytest.approx(leads, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((np.mean(leads) - reach, np.mean(leads) + reach), abs=2e-4)


def test_the_verdict_turns_when_the_records_contradict_the_claim(claim, ran, tmp_path):
    shutil.copytree(ran, tmp_path / "turned")
    cells = tmp_path / "turned" / "cells"
    for seed in range(5):
        one, other = (cells / f"tiny-{name}-s{seed}" / "clients.jsonl" for name in ("fedper", "fedavg"))
        texts = one.read_text(), other.read_text()
        other.write_text(texts[0])
        one.write_text(texts[1])
    assert evidence_of([claim], tmp_path / "turned").claims[0].verdict == "does not"


def test_too_few_runs_leave_it_open(claim, ran, tmp_path):
    shutil.copytree(ran, tmp_path / "some")
    shutil.rmtree(tmp_path / "some" / "cells" / "tiny-fedper-s3")
    found = evidence_of([claim], tmp_path / "some", {"tiny-fedper-s3": 7.0})
    assert found.claims[0].verdict == "open"
    assert found.claims[0].comparisons[0].why_open == "4 of 5 seeds"
    assert (found.finished, found.runs, found.claims[0].cost.seconds_left) == (9, 10, 7.0)
    nothing = evidence_of([claim], tmp_path / "empty").claims[0]
    assert (nothing.verdict, nothing.comparisons[0].why_open) == ("open", "not run")


def test_interrupted_in_the_middle_it_ends_with_the_same_file(claim, ran, tmp_path):
    jobs = jobs_of([claim], tmp_path)
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    for job in (jobs[4], jobs[7]):  # of seeds 2 and 3
        shutil.rmtree(job.folder)
    carry_on(jobs[4], Stop(asked=True))
    assert 0 < jobs[4].done < jobs[4].steps
    assert evidence_of([claim], tmp_path).claims[0].comparisons[0].seeds == [0, 1, 4]  # half a run is no result
    for job in jobs:
        carry_on(job)
    assert evidence_of([claim], tmp_path).without_clock() == evidence_of([claim], ran).without_clock()


def test_tuned_runs_are_read_from_the_file_of_the_judge(claim, tmp_path):
    clients = {"fedper": [0.9, 0.8, None], "fedavg": [0.6, 0.7, 0.5]}
    runs = {name: {"runs": [{"seed": s, "clients": own} for s in range(10, 15)]} for name, own in clients.items()}
    (tmp_path / "judge.json").write_text(json.dumps({"setting": runs}))
    judged = replace(claim, protocol=replace(claim.protocol, judged="setting"))
    assert judged.jobs(tmp_path) == []
    found = evidence_of([judged], tmp_path, tuned=tmp_path / "judge.json").claims[0]
    assert (found.verdict, found.comparisons[0].lead, found.comparisons[0].gains) == ("holds", 20.0, None)
    assert found.comparisons[0].seeds == [10, 11, 12, 13, 14]
    assert evidence_of([judged], tmp_path).claims[0].verdict == "open"
