"""Callbacks: what happens beside the rounds of a run. The loop calls them and knows none of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedtailor.errors import FedTailorError

if TYPE_CHECKING:
    from fedtailor.experiment.simulation import Simulation

Record = dict[str, Any]  # one line of metrics.jsonl


class Callback:
    """Base class of callbacks: override the hooks you need.

    `simulation` is open to look at (`metrics`, `server.state`, `personal(…)`), and `simulation.stop()` ends the rounds early.
    A run that goes on from a checkpoint, because it lost a worker, starts its callbacks again.
    """

    def on_start(self, simulation: Simulation) -> None:
        """Called before the first round that is left; `simulation.metrics` has the rounds before it."""

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Called after each round and each closing step with its line of metrics."""

    def on_end(self, simulation: Simulation) -> None:
        """Called once nothing more is run, also after an interruption or an error."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EarlyStopping(Callback):
    """End the rounds when a metric has not improved for `patience` evaluations; the closing steps follow.

    By default it is the mean over clients of the metric that selects, on validation samples if there are any.

    The decision depends on the recorded metrics alone, so a resumed run ends where it would have ended.
    """

    def __init__(self, patience: int, metric: str = "", *, lower_is_better: bool = False) -> None:
        if patience < 1:
            raise FedTailorError(f"patience = {patience} is not allowed: expected a number of evaluations ≥ 1.")
        self.patience = patience
        self.metric = metric
        self.sign = -1.0 if lower_is_better else 1.0

    def on_start(self, simulation: Simulation) -> None:
        self._decide(simulation)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        if record["phase"] == "round":
            self._decide(simulation)

    def _decide(self, simulation: Simulation) -> None:
        rounds = [r for r in simulation.metrics if r["phase"] == "round" and r["loss"] is not None]
        name, sign = self.metric, self.sign
        if not name:
            first = simulation.worker.metrics[0]
            name = f"{'validation_' if simulation.protocol.validation else ''}{first.name}_mean"
            sign = -1.0 if first.lower_is_better else 1.0
        if rounds and name not in rounds[0]:
            raise FedTailorError(f"There is no metric '{name}' to stop by. Each round has: {', '.join(rounds[0])}.")
        known = (math.nan if r[name] is None else sign * r[name] for r in rounds)  # undefined: None in a resumed run
        values = [-math.inf if math.isnan(value) else value for value in known]
        if values and len(values) - 1 - values.index(max(values)) >= self.patience:
            simulation.stop()

    def __repr__(self) -> str:
        metric = f", {self.metric!r}" if self.metric else ""
        return f"EarlyStopping({self.patience}{metric}{', lower_is_better=True' if self.sign < 0 else ''})"


class EachRound(Callback):
    """A plain function of each round's record."""

    def __init__(self, function: Callable[[Record], object]) -> None:
        if not callable(function):
            raise FedTailorError(
                f"callbacks are ft.Callback objects or functions of a round's record, not {function!r}."
            )
        self.function = function

    def on_round(self, simulation: Simulation, record: Record) -> None:
        self.function(record)

    def __repr__(self) -> str:
        return f"EachRound({self.function!r})"


Callbacks = Iterable[Callback | Callable[[Record], object]]


@contextmanager
def calling(callbacks: Callbacks, simulation: Simulation) -> Iterator[Callable[[Record], None]]:
    """Start the callbacks, yield what is called after each round, and end them whatever happens."""
    hooks = [c if isinstance(c, Callback) else EachRound(c) for c in callbacks]
    started: list[Callback] = []

    def after_round(record: Record) -> None:
        for hook in hooks:
            hook.on_round(simulation, record)

    try:
        for hook in hooks:
            started.append(hook)
            hook.on_start(simulation)
        yield after_round
    finally:
        for hook in reversed(started):
            hook.on_end(simulation)
