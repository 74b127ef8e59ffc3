from __future__ import annotations

import shlex

import pandas as pd

QUICK = ("data=digits", "data.fraction=0.1", "clients=3", "net=mlp", "rounds=2", "engine=inline")


def test_tune_says_what_it_chose_and_the_command_it_prints_runs(tmp_path, fedtailor, rendered):
    words = ("tune", "fedavg", "fedrep:head_epochs=2", *QUICK, "--budget", "2", "--out", tmp_path / "t")
    said = fedtailor(*words)
    assert "fedavg, trial 2: lr=" in said
    assert (tmp_path / "t" / "sensitivity.png").stat().st_size > 1000
    command = next(line for line in said.splitlines() if "fedtailor run" in line and "method=fedrep" in line)
    assert "method.head_epochs=2" in command
    fedtailor(*shlex.split(command)[1:], "--out", tmp_path / "r")
    again = fedtailor(*words)
    assert "trial 2: lr=" not in again  # nothing was left to do
    assert "fedavg: lr=" in again


def test_compare_tunes_first(tmp_path, fedtailor):
    words = ("compare", "local", "fedavg", "fedrep", *QUICK, "lr=0.1", "--tune", "2", "--seeds", "0,1,2")
    said = fedtailor(*words, "--out", tmp_path)
    assert said.index("Tuning") < said.index("Table:")
    assert len(pd.read_csv(tmp_path / "table.csv")) == 3
    fedtailor("report", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "mean rank" in page
    assert "best test round" in page


def test_mistakes_are_told(tmp_path, fedtailor):
    assert "There is no method" in fedtailor("tune", "fedrap", *QUICK, "--out", tmp_path, code=2)
    assert "Nothing is left to tune" in fedtailor(
        "tune", "local", *QUICK, "lr=0.1", "optimizer=sgd", "--out", tmp_path, code=2
    )
    assert "is not in the range" in fedtailor("tune", "local", *QUICK, "--budget", "0", code=2)
