"""`fedtailor claims` lists claims, and carries out a small one."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedtailor.cli.app import app
from fedtailor.errors import FedTailorError
from fedtailor.papers.claims import claim as module
from fedtailor.papers.claims.claim import Arm, ArmPair, Claim, ClaimProtocol
from fedtailor.papers.grid import carry_on

WORDS = "data=digits data.fraction=0.1 partition=iid clients=2 net=mlp net.hidden=[4] rounds=1 batch=64"


@pytest.fixture
def tiny(monkeypatch) -> Claim:
    arms = (Arm(name, (f"method={name}",)) for name in ("local", "fedavg"))
    protocol = ClaimProtocol("tiny", "digits", tuple(WORDS.split()))
    full = ("pgfedsplit/table2", "FashionMNIST, Dir 0.1")
    claim = Claim("field", "tiny", "Alone is better.", "nowhere", protocol, (ArmPair(*arms),), full, seeds=1)
    monkeypatch.setattr(module, "claims", lambda: (claim,))
    return claim


def typed(*words: str) -> str:
    result = CliRunner().invoke(app, ["claims", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_lists_plans_runs_and_writes_the_page(tiny, tmp_path):
    out = str(tmp_path / "runs")
    assert "not run" in typed("--out", out)
    assert "0/2" in typed("--plan", "--out", out)
    measured = json.loads((tmp_path / "runs" / "seconds.json").read_text())
    assert measured.keys() == {job.name for job in tiny.jobs(tmp_path)}
    typed("--out", out, "--page", str(tmp_path / "page"))  # what was measured is shown, not measured again
    cost = json.loads((tmp_path / "page" / "evidence.json").read_text())["claims"][0]["cost"]
    assert cost["seconds_left"] == pytest.approx(sum(measured.values()), abs=0.1)
    for job in tiny.jobs(tmp_path / "runs"):
        carry_on(job)  # in this process: what starts others is tested with grids
    assert "2/2" in typed("field/tiny", "--run", "--out", out)
    found = json.loads((tmp_path / "runs" / "evidence.json").read_text())
    assert [c["name"] for c in found["claims"]] == ["field/tiny@tiny"]
    assert found["claims"][0]["comparisons"][0]["why_open"] == "1 of 5 seeds"
    assert "Alone is better." in (tmp_path / "runs" / "evidence.md").read_text()


def test_runs_that_the_folder_of_the_page_keeps_are_not_run_again(tiny, tmp_path):
    out, page = tmp_path / "runs", tmp_path / "page"
    for job in tiny.jobs(out):
        carry_on(job)
    typed("--out", str(out), "--page", str(page))
    first = (page / "evidence.json").read_text()
    assert "2/2" in typed("--run", "--out", str(tmp_path / "elsewhere"), "--page", str(page))
    assert not (tmp_path / "elsewhere" / "cells").exists()
    assert (page / "evidence.json").read_text() == first
    assert (tmp_path / "elsewhere" / "evidence-runs.json").read_text() == (page / "evidence-runs.json").read_text()


def test_an_unknown_claim_is_named():
    with pytest.raises(FedTailorError, match="no claim 'fedha'"):
        CliRunner().invoke(app, ["claims", "fedha"], catch_exceptions=False)
