"""Finished runs are kept in a file: their folders may go, and what else ran does not count as them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedtailor.errors import FedTailorError
from fedtailor.papers.claims.claim import ClaimProtocol
from fedtailor.papers.claims.evidence import evidence_of
from fedtailor.papers.claims.finished import FILE, FinishedRun, digest, finished_runs, keep_runs, kept_runs, run_of


def made(scores: list[float | None], gain: float = 0.0) -> FinishedRun:
    return FinishedRun(overrides="", scores={"accuracy": scores}, gains={"accuracy": gain}, seconds=1.0, steps=2)


def test_runs_that_another_command_has_added_meanwhile_stay(tmp_path):
    keep_runs(tmp_path, {"a": made([0.1])})
    keep_runs(tmp_path, {"b": made([0.2])})  # begun before the first was written
    assert {name: run.scores["accuracy"] for name, run in kept_runs(tmp_path).items()} == {"a": [0.1], "b": [0.2]}


def test_the_file_gives_the_verdict_of_the_folders(claim, ran, tmp_path):
    keep_runs(tmp_path, finished_runs(claim.jobs(ran)))
    elsewhere = evidence_of([claim], tmp_path / "no-folders", finished=kept_runs(tmp_path))
    assert elsewhere == evidence_of([claim], ran)
    assert elsewhere.finished == 10


def test_scores_are_those_of_clients_jsonl_and_missing_ones_stay_missing(claim, ran, tmp_path):
    job = claim.jobs(ran)[3]
    lines = [json.loads(line) for line in (job.folder / "clients.jsonl").read_text().splitlines()]
    last = [line["accuracy"] for line in lines if "accuracy" in line][-1]
    run = finished_runs([job])[job.name]
    assert run.clients("accuracy") == pytest.approx(last, abs=1e-8)
    keep_runs(tmp_path, {"a": made([0.5, None], np.inf)})
    back = kept_runs(tmp_path)["a"]
    assert np.isnan(back.clients("accuracy")[1])
    assert back.gains["accuracy"] == np.inf  # never evaluated before the last fifth: not converged, whatever the lead


def test_a_run_under_another_protocol_does_not_count(claim, ran):
    finished = finished_runs(claim.jobs(ran))
    longer = tuple("rounds=5" if o == "rounds=4" else o for o in claim.protocol.overrides)
    changed = replace(claim, protocol=ClaimProtocol(claim.protocol.name, "digits", longer))
    assert [job.name for job in changed.jobs(ran)] == [job.name for job in claim.jobs(ran)]
    assert all(run_of(job, finished) for job in claim.jobs(ran))
    assert not any(run_of(job, finished) for job in changed.jobs(ran))
    assert evidence_of([changed], ran, finished=finished).finished == 0


def test_the_data_folder_may_be_elsewhere(claim, tmp_path, monkeypatch):
    named = replace(claim, protocol=ClaimProtocol("tiny", "", (*claim.protocol.overrides, "net.weights={data}/w.pt")))
    jobs, digests = [], []
    for place in ("one", "two"):
        monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / place))
        jobs.append(named.jobs(tmp_path)[0])
        digests.append(digest(jobs[-1]))
    assert jobs[0].overrides != jobs[1].overrides
    assert digests[0] == digests[1]


LIES = (
    {"scores": {}},
    {"gains": {}},
    {"steps": 0},
    {"seconds": -1.0},
    {"scores": {"accuracy": [0.5], "f1": [0.5, 0.5]}, "gains": {"accuracy": 0.0, "f1": 0.0}},
)


@pytest.mark.parametrize("lie", LIES)
def test_a_run_that_lies_is_refused(lie, tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"a": made([0.5]).model_dump() | lie}))
    with pytest.raises(FedTailorError, match="not a file of finished runs"):
        kept_runs(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 3}', '{"a": {"overrides": "x"}}', '"text"'])
def test_another_file_is_refused(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FedTailorError, match="not a file of finished runs"):
        kept_runs(tmp_path)
