"""Callbacks see every round, and early stopping ends where the recorded metrics say."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedtailor as ft
from fedtailor import Callback, Config, EarlyStopping, FedTailorError, Simulation
from fedtailor.experiment.run import resume, start
from fedtailor.experiment.run_folder import RunFolder

NET = "mlp"
WORDS = ["rounds=9", "clients=3", "partition=iid", "net=mlp", "net.hidden=[8]", "engine=inline", "lr=1e-9"]


class Diary(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_start(self, simulation):
        self.lines.append(f"start {simulation.round}")

    def on_round(self, simulation, record):
        assert simulation.metrics[-1] is record
        self.lines.append(f"{record['phase']} {record['round']}")

    def on_end(self, simulation):
        self.lines.append(f"end {simulation.round}")


def test_hooks_are_called_in_order_and_a_function_is_a_callback(federation):
    diary, accuracies = Diary(), []
    method = ft.FedAvgFT(ft_epochs=1)
    ft.Simulation(federation, method, NET, rounds=2, batch=4).run(diary, lambda r: accuracies.append(r["accuracy"]))
    assert diary.lines == ["start 0", "round 1", "round 2", "finish 2", "end 2"]
    assert len(accuracies) == 3


def test_callbacks_end_also_when_a_round_fails(federation):
    diary = Diary()

    def fail(record):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Simulation(federation, "fedavg", NET, rounds=2, batch=4).run(diary, fail)
    assert diary.lines == ["start 0", "round 1", "end 1"]


def test_early_stopping_counts_evaluations_without_improvement(federation):
    simulation = Simulation(federation, "local", NET, rounds=50, batch=4)
    values = iter([0.5, 0.6, 0.6, 0.55, 0.7, 0.7, 0.7, 0.7, 0.9])
    simulation._quality = lambda due: {"loss": 0.0, "accuracy_mean": next(values)}
    simulation.run(EarlyStopping(3))
    assert [r["accuracy_mean"] for r in simulation.metrics] == [0.5, 0.6, 0.6, 0.55, 0.7, 0.7, 0.7, 0.7]


@pytest.mark.parametrize("undefined", [math.nan, None], ids=["in memory", "resumed"])
def test_a_round_in_which_the_metric_is_undefined_is_no_improvement(federation, undefined):
    simulation = Simulation(federation, "local", NET, rounds=50, batch=4)
    values = iter([undefined, 0.5, undefined, 0.6, undefined, undefined, 0.9])
    simulation._quality = lambda due: {"loss": 0.0, "auroc_mean": next(values)}
    simulation.run(EarlyStopping(2, "auroc_mean"))
    assert [r["auroc_mean"] for r in simulation.metrics][3:] == [0.6, undefined, undefined]


@pytest.mark.parametrize("other", [3, None])
def test_a_callback_that_cannot_be_called_is_refused_before_the_first_round(federation, other):
    simulation = Simulation(federation, "local", NET, rounds=3, batch=4)
    with pytest.raises(FedTailorError, match=f"objects or functions of a round's record, not {other}"):
        simulation.run(other)
    assert not simulation.metrics


def test_a_metric_that_is_not_there_is_told(federation):
    with pytest.raises(FedTailorError, match=r"There is no metric 'f1' to stop by. Each round has: round, "):
        Simulation(federation, "local", NET, rounds=3, batch=4).run(EarlyStopping(1, "f1"))


def test_a_run_that_stops_early_is_finished_and_a_resumed_one_ends_in_the_same_round(tmp_path):
    config = Config.load(words=[*WORDS, "method=fedavg-ft", "method.ft_epochs=1"])
    start(
        config, tmp_path / "whole", [EarlyStopping(2)]
    )  # nothing is learnt at this rate: the first round stays the best
    folder = RunFolder(tmp_path / "whole")
    assert [(r["phase"], r["round"]) for r in folder.records()] == [
        ("round", 1),
        ("round", 2),
        ("round", 3),
        ("finish", 3),
    ]
    assert folder.state == "finished"
    assert resume(tmp_path / "whole") is None

    def interrupt(record):
        if record["phase"] == "finish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(config, tmp_path / "parts", [EarlyStopping(2), interrupt])
    resume(tmp_path / "parts", [EarlyStopping(2)])
    again = RunFolder(tmp_path / "parts").records()
    assert [r["accuracy"] for r in again] == [r["accuracy"] for r in folder.records()]


def test_without_a_name_it_stops_by_the_metric_that_selects():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    federation = ft.Federation.from_arrays(x, x.sum(1), clients=3)
    simulation = Simulation(federation, "local", NET, rounds=9, batch=4, lr=1e-12).run(EarlyStopping(2))
    errors = [r["rmse_mean"] for r in simulation.metrics]
    assert len(errors) == errors.index(min(errors)) + 1 + 2 < 9
    assert "mean RMSE of clients" in repr(simulation)
