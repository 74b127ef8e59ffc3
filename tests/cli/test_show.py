"""`fedtailor show`: whatever a folder of runs holds, each run is shown as what it is."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from fedtailor.cli.app import app, main
from fedtailor.errors import FedTailorError
from tests.report.conftest import make_run as make_run

NAMES = ["Ulm", "Bonn", "Köln"]


def show(*words: object) -> str:
    return " ".join(CliRunner().invoke(app, ["show", *map(str, words)], catch_exceptions=False).output.split())


def test_runs_a_deployment_and_one_without_a_round_side_by_side(make_run, tmp_path):
    make_run("runs/study/local-s0", "method=local", clients=[0.5, 0.6, 0.7], names=NAMES, tested=(9, 9, 9))
    make_run("runs/study/fedrep-s0", "method=fedrep", clients=[0.9, 0.9, 0.9], names=NAMES, tested=(9, 9, 9))
    deployed = make_run("runs/fed/run", "method=fedper", "partition.beta=7", clients=[0.3, 0.4], tested=(9, 9))
    (deployed / "labels.json").unlink()
    (tmp_path / "runs/fed/federation.toml").write_text("clients = 2\n")
    (tmp_path / "runs/fed/sites/0").mkdir(parents=True)
    (tmp_path / "runs/fed/sites/0/site.toml").write_text("client = 0\n")
    make_run("runs/new", "method=fedavg", "partition.beta=7", accuracy=[], clients=[], state="interrupted")
    (make_run("runs/broken") / "metrics.jsonl").write_text("{}\n")
    said = show(tmp_path / "runs")
    assert "Clients: fedrep against local" in said
    assert "Ulm" in said
    assert "Clients: fedper" in said  # the deployment's run, in a table of its own
    assert f"The run in '{tmp_path}/runs/new' is interrupted after round 0 of 1. Carry on with: fedtailor run" in said
    assert f"Left out: '{tmp_path}/runs/broken/metrics.jsonl' is damaged" in said
    assert "Clients: fedper" in show(tmp_path / "runs" / "fed")
    with pytest.raises(FedTailorError, match="no finished round yet"):
        show(tmp_path / "runs" / "new")


def test_many_clients_are_listed_when_asked_for(make_run, tmp_path):
    run = make_run("a", clients=[0.5] * 13, names=[f"site{i}" for i in range(13)], tested=[9] * 13)
    assert "site12" not in show(run)
    assert "site12" in show(run, "--clients")
    few = make_run("b", names=NAMES)
    assert "Bonn" in show(few)
    assert "Bonn" not in show(few, "--no-clients")


def test_another_baseline(make_run, tmp_path):
    for name in ("local", "fedavg", "fedrep"):
        make_run(f"s/{name}", f"method={name}", names=NAMES)
    assert "fedavg against fedrep" in show(tmp_path / "s", "--baseline", "fedrep")
    with pytest.raises(FedTailorError, match="Did you mean 'fedrep'"):
        show(tmp_path / "s", "--baseline", "fedrepp")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock")
def test_a_run_killed_under_way_is_shown_as_interrupted(tmp_path):
    words = "run data=digits data.fraction=0.1 clients=2 net=mlp net.hidden=[4] rounds=100000 engine=inline -o a"
    with subprocess.Popen(
        [sys.executable, "-m", "fedtailor", *words.split()], cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as run:
        metrics, limit = tmp_path / "a" / "metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < limit:
            time.sleep(0.05)
        assert "This run is running after round" in show(tmp_path / "a")
        os.kill(run.pid, signal.SIGKILL)
    said = show(tmp_path / "a")
    assert "This run is interrupted after round" in said
    assert "Carry on with: fedtailor run --resume" in said


def test_a_printed_table_holds_no_warnings(make_run, monkeypatch, capsys):
    run = make_run("a")
    status = json.loads((run / "status.json").read_text())
    marks = {"metrics.jsonl": {"bytes": 1, "sha256": "0" * 64}}
    (run / "status.json").write_text(json.dumps(status | {"files": marks}))
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a process of its own
    monkeypatch.setattr(sys, "argv", ["fedtailor", "report", str(run), "--format", "md"])
    with pytest.raises(SystemExit):
        main()
    table, warnings = capsys.readouterr()
    assert table.startswith("### digits")
    assert "WARNING" not in table
    assert "edited or damaged" in " ".join(warnings.split())
