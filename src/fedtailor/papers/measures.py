"""The measures that the papers' tables report, computed from a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.data.pool import data_root
from fedtailor.data.task import Task
from fedtailor.experiment.config import Config
from fedtailor.experiment.onboarding import finished_simulation
from fedtailor.experiment.run_folder import RunFolder, read_lines
from fedtailor.learning.scoring import score
from fedtailor.methods.fedsimsup import FedSimSup

PATIENCE = 100  # evaluations without improvement after which a run counts as converged
TWO_MODELS = {"ditto", "perada", "heart"}  # methods whose clients train a personal model beside the shared one


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run to be measured; a `group` names the only clients that count: those with a kind of supervisor, or one client."""

    path: Path
    config: Config
    group: str = ""

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return [r for r in RunFolder(self.path).records() if r["accuracy"] is not None]

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        return [r for r in RunFolder(self.path).records() if r["phase"] == "round"]

    @property
    def clients(self) -> np.ndarray:
        """The last accuracy of each client, NaN where there is none."""
        return self.scores("accuracy")

    def scores(self, metric: str) -> np.ndarray:
        """Return the last value of a metric for each client, NaN where there is none."""
        lines = read_lines(RunFolder(self.path).clients)
        last = next(line[metric] for line in reversed(lines) if metric in line)
        return np.array([np.nan if value is None else value for value in last], dtype=float)

    @property
    def members(self) -> list[int]:
        """The clients that count."""
        if self.group and isinstance(self.config.method, FedSimSup):
            return self.config.method.groups(self.config.settings.seed, len(self.clients))[self.group]
        return list(range(len(self.clients)))


@dataclass(frozen=True)
class PaperMeasure:
    """A measure of a run: its title, and the function that computes it."""

    title: str
    short: str
    of: Callable[[MeasuredRun], float]
    lower_is_better: bool = False
    needs_models: bool = False  # needs the state after the last round
    needs_run: bool = True


def best(run: MeasuredRun) -> float:
    """Return the accuracy of the best round; a method that fine-tunes after the rounds is measured after fine-tuning."""
    if run.records[-1]["phase"] == "finish":
        return last(run)
    return 100 * max(r["accuracy"] for r in run.records)


def last(run: MeasuredRun) -> float:
    return 100 * float(run.records[-1]["accuracy"])


def last_mean(run: MeasuredRun) -> float:
    accuracies = run.clients[run.members]
    return float(np.nanmean(accuracies)) if np.isfinite(accuracies).any() else float("nan")


def last_of_client(run: MeasuredRun) -> float:
    names = json.loads(RunFolder(run.path).labels.read_text())["clients"]
    return 100 * float(run.clients[names.index(run.group)])


def of_global_model(run: MeasuredRun) -> float:
    """Return the accuracy of the server's last model on the test samples of all clients."""
    simulation = finished_simulation(run.path)
    net = simulation.server.net(model=simulation.server.state["model"])
    clients = enumerate(simulation.federation.clients)
    scores = [score(net, simulation.worker.samples(client.test, (i, "test"))) for i, client in clients]
    return 100 * sum(s.correct for s in scores) / max(1, sum(s.total for s in scores))


def seconds_per_round(run: MeasuredRun) -> float:
    return float(np.mean([r["seconds_training"] + r["seconds_communication"] for r in run.rounds]))


def rounds_to_best(run: MeasuredRun) -> float:
    """Return the best round before the accuracy stalls for more than PATIENCE evaluations."""
    best_accuracy, best_round, waited = -1.0, 0, 0
    for record in (r for r in run.rounds if r["accuracy"] is not None):
        waited += 1
        if record["accuracy"] > best_accuracy:
            best_accuracy, best_round, waited = record["accuracy"], record["round"], 0
        if waited > PATIENCE:
            break
    return float(best_round)


def sent_per_round(run: MeasuredRun) -> float:
    """Return the parameters sent to and from one participant per round, in units of whole models."""
    pool = run.config.data.read(data_root(run.config.data_settings.root))
    whole = _parameters(run.config, pool.task)
    moved = float(np.mean([(r["bytes_up"] + r["bytes_down"]) / r["picked"] for r in run.rounds]))
    return moved / run.config.settings.torch_dtype.itemsize / whole


def trained(run: MeasuredRun) -> float:
    """Return the millions of parameters that one client trains on CIFAR-100, in all its models."""
    models = 2 if run.config.method.name in TWO_MODELS else 1
    return models * _parameters(run.config, Task((3, 32, 32), 100)) / 1e6


def _parameters(config: Config, task: Task) -> int:
    net: Any = config.net
    net = replace(net, weights="") if hasattr(net, "weights") else net
    with torch.device("meta"):  # shapes only: no random numbers are drawn, no weights read
        return sum(p.numel() for p in net.build(task).parameters() if p.requires_grad)


POOLED = "every test sample counting equally, %"

MEASURES = {
    "best": PaperMeasure(f"accuracy of the best round (where fine-tuned: the last), {POOLED}", "best accuracy", best),
    "last": PaperMeasure(f"accuracy of the last round, {POOLED}", "accuracy", last),
    "last-mean": PaperMeasure("accuracy of the last round, mean of clients, 0 to 1", "accuracy", last_mean),
    "last-client": PaperMeasure(
        "accuracy of the last round on the client's own test samples, %", "accuracy", last_of_client
    ),
    "global": PaperMeasure(
        f"accuracy of the global model, {POOLED}", "global accuracy", of_global_model, needs_models=True
    ),
    "trained": PaperMeasure(
        "millions of parameters that a client trains", "parameters (M)", trained, lower_is_better=True, needs_run=False
    ),
    "seconds-per-round": PaperMeasure(
        "seconds per round", "seconds per round", seconds_per_round, lower_is_better=True
    ),
    "minutes-per-round": PaperMeasure(
        "minutes per round", "minutes per round", lambda run: seconds_per_round(run) / 60, lower_is_better=True
    ),
    "rounds-to-best": PaperMeasure("rounds to convergence", "rounds", rounds_to_best, lower_is_better=True),
    "minutes-to-best": PaperMeasure(
        "minutes to convergence",
        "minutes",
        lambda run: seconds_per_round(run) / 60 * rounds_to_best(run),
        lower_is_better=True,
    ),
    "sent-per-round": PaperMeasure(
        "parameters to and from a participant in a round, in whole models Σ",
        "sent (Σ)",
        sent_per_round,
        lower_is_better=True,
    ),
}
