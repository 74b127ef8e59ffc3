"""Estimate how long a grid will take, by timing one client in one round of each kind of run on the real data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.experiment.simulation import Simulation
from fedtailor.papers.grid import Job

T = TypeVar("T")


@dataclass
class TimeEstimate:
    """Seconds of work left in each run, and why some runs cannot be done at all."""

    seconds: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    probes: int = 0

    def total(self, workers: int) -> float:
        """Return wall-clock seconds: the work spread evenly over workers, but no less than the longest run."""
        return max(sum(self.seconds.values()) / workers, max(self.seconds.values(), default=0.0))


def estimate(jobs: Iterable[Job], tick: Callable[[str], None] = lambda text: None) -> TimeEstimate:
    """Probe one method of each family on each data set; of a run under way, the rounds that are left count."""
    found = TimeEstimate()
    by_data: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.finished:
            by_data.setdefault(_data(job.config), []).append(job)
    for some in by_data.values():
        first = some[0].config
        tick(f"reading {first.data.name}")
        try:
            federation = first.federation()
        except FedTailorError as error:
            found.gaps |= dict.fromkeys((job.name for job in some), str(error))
            continue
        _probe_all(some, federation, found, tick)
    return found


def _probe_all(jobs: list[Job], federation: Federation, found: TimeEstimate, tick: Callable[[str], None]) -> None:
    known: dict[str, float | str] = {}
    for job in jobs:
        config = job.config
        kind = _kind(config)
        if kind not in known:
            tick(f"one round of {config.method.name} on {config.data.name}")
            try:
                known[kind] = probe(config, federation)
                found.probes += 1
            except FedTailorError as error:
                known[kind] = str(error)
        cost = known[kind]
        if isinstance(cost, str):
            found.gaps[job.name] = cost
        else:
            found.seconds[job.name] = cost * (1 - job.done / job.steps)


def probe(config: Config, federation: Federation) -> float:
    """Estimate the seconds of a whole run from two rounds in which one client takes part and all are evaluated."""
    settings, clients = config.settings, len(federation.clients)
    transfers = int(getattr(config.method, "akt_steps", 1))
    method = replace(config.method, akt_steps=1) if transfers > 1 else config.method  # type: ignore[call-arg]
    alone = replace(settings, join=1 / clients, eval_every=1)
    simulation = Simulation(federation, method, config.net, engine="inline", protocol=alone)
    found = []
    for _ in range(
        2
    ):  # the first step warms up, and may fall on a client of few samples, whose fixed costs would be multiplied
        record, core = timed(simulation.step)
        trained = sum(outcome.samples for outcome in simulation.outcomes.values())
        share = len(simulation.outcomes) / clients if settings.steps else trained / federation.sizes.sum()
        found.append((core * record["seconds_training"] / (share or 1), core, record))
    everyone, core, record = min(found, key=lambda one: one[0])
    server = record["seconds_communication"] * transfers * min(settings.rounds, getattr(method, "akt_rounds", 10**9))
    closing = method.closing_steps if settings.eval_closing == "each" else min(1, method.closing_steps)
    evaluations = settings.rounds / settings.eval_every + closing
    epochs = method.closing_steps / max(1, settings.epochs)
    participation = sum(settings.join_range) / 2
    training = everyone * (settings.rounds * participation + epochs)
    return float(training + core * (server + evaluations * record["seconds_evaluation"]))


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what the work returns, and the share of its time in which it had a core to itself: other processes' time is not its cost."""
    cpu, clock = time.process_time(), time.perf_counter()
    done = work()
    return done, min(1.0, (time.process_time() - cpu) / (time.perf_counter() - clock))


def seconds_per_step(rounds: list[dict[str, Any]]) -> float:
    return sum(v for r in rounds for k, v in r.items() if k.startswith("seconds_")) / len(rounds)


def _data(config: Config) -> str:
    """Key of runs that can share one federation for probing: the data and the number of clients, not the partition."""
    return repr((config.data, config.data_settings, config.settings.clients))


def _kind(config: Config) -> str:
    """Key of runs that cost about the same: one family of methods, net and protocol."""
    return repr((config.method.family, config.net, replace(config.settings, seed=0)))
