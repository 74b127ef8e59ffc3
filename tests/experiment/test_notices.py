"""Divergence and left-out replies are told in a line, not in thousands."""

from __future__ import annotations

import logging

import pytest

from fedtailor import Simulation
from fedtailor.learning import Protocol
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize("lr", [1000.0, 1e6])
@pytest.mark.parametrize("name", ["local", "fedavg", "fedrep", "fedgh"])
def test_a_rate_at_which_training_diverges_is_told_once_with_a_count(federation, caplog, name, lr, engine):
    with caplog.at_level(logging.WARNING):
        run = Simulation(federation, name, NET, rounds=5, batch=2, lr=lr, engine=engine, workers=2).run()
    run.close()
    told = [r.getMessage() for r in caplog.records if "diverged" in r.getMessage()]
    assert 1 <= len(told) <= 2
    assert told[0].startswith("round 1: training diverged at 4 clients (client 0, client 1, client 2, client 3)")
    assert f"Lower lr (now {lr:g})" in told[0]
    assert run.metrics[0]["diverged"] == 4
    assert len(caplog.records) < 8


def test_a_run_that_learns_has_nothing_to_tell(federation, caplog):
    with caplog.at_level(logging.WARNING):
        run = Simulation(federation, "fedavg", NET, rounds=5, batch=2, lr=0.1).run()
    assert not caplog.records
    assert not any({"diverged", "rejected"} & set(record) for record in run.metrics)


def test_what_goes_wrong_in_closing_steps_is_told_too(federation, caplog):
    from fedtailor.methods.finetune import FedAvgFT

    with caplog.at_level(logging.WARNING):
        run = Simulation(federation, FedAvgFT(ft_epochs=2), NET, rounds=1, epochs=0, lr=1e6).run()
    assert "diverged" not in run.metrics[0]
    assert run.metrics[1]["diverged"] == 4
    assert "training diverged at" in caplog.text


def test_steps_left_out_are_among_the_numbers_of_a_client(federation):
    beyond = Protocol(rounds=1, batch=2)
    object.__setattr__(beyond, "lr", 1e30)  # more than the option allows
    run = Simulation(federation, "fedavg", NET, protocol=beyond, engine="inline")
    outcomes = run.engine.fit(1, [0], run._send, evaluate=False)
    assert outcomes[0].logged["skipped_steps"] + outcomes[0].logged.get("undone_phases", 0) >= 1
