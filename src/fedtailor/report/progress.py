"""Live progress: a bar with round, metric and time left on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from fedtailor.experiment.callbacks import Callback, Record
from fedtailor.experiment.headline import Headline
from fedtailor.report.terminal import Terminal

if TYPE_CHECKING:
    from fedtailor.experiment.simulation import Simulation

SECONDS_BETWEEN_LINES = 5.0


class Progress(Callback):
    """Show the progress of a run."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal(stderr=True)

    def on_start(self, simulation: Simulation) -> None:
        self.label = f"{simulation.method.name} seed {simulation.protocol.seed}"
        self.steps = simulation.protocol.rounds + simulation.method.closing_steps
        self.bar, self.task = _rounds_bar(self.console, self.steps, self.label, simulation.round)
        self._said = self._began = time.monotonic()
        self._first, self.value = simulation.round, ""
        self.bar.start()

    def on_round(self, simulation: Simulation, record: Record) -> None:
        done = record["round"] + record.get("step", 0)
        metric = Headline.of_record(record)
        mean = metric.of(record, "mean")
        value = f"{metric.title} {metric.shown(mean)}" if np.isfinite(mean) else ""
        self.value = value or self.value
        self.bar.update(self.task, completed=done, note=self.value)
        now = time.monotonic()
        if not _animated(self.console) and (done == self.steps or now - self._said >= SECONDS_BETWEEN_LINES):
            left = (now - self._began) / (done - self._first) * (self.steps - done)
            self.console.print(f"{self.label}: round {done}/{self.steps}, {value}, {left:.0f} s left", soft_wrap=True)
            self._said = now

    def on_end(self, simulation: Simulation) -> None:
        self.bar.stop()


class GridProgress:
    """Show the progress of a grid: all rounds of all runs as one bar."""

    def __init__(self, console: Console, steps: dict[str, int]) -> None:
        self.console = console
        self.steps = steps
        self.done = dict.fromkeys(steps, 0)
        self.bar, self.task = _rounds_bar(console, sum(steps.values()), "runs")
        self._said, self._told = time.monotonic(), 0

    def update(self, done: dict[str, int], running: list[str]) -> None:
        """Update the bar; `done` has the rounds of the runs that advanced."""
        self.done |= done
        finished = sum(self.done[name] >= count for name, count in self.steps.items())
        rounds, label = sum(self.done.values()), f"runs {finished}/{len(self.steps)}"
        others = f" and {len(running) - 1} more" if len(running) > 1 else ""
        note = running[0][:40] + others if running else ""
        self.bar.update(self.task, completed=rounds, description=label, note=note)
        now = time.monotonic()
        if not self.console.is_terminal and rounds > self._told and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said, self._told = now, rounds
            total = sum(self.steps.values())
            self.console.print(f"{label}, round {rounds}/{total}, at {', '.join(running)}", soft_wrap=True)


def _animated(console: Console) -> bool:
    return console.is_terminal or console.is_jupyter


def _rounds_bar(console: Console, total: int, label: str, done: int = 0) -> tuple[Bars, TaskID]:
    """Make a bar of rounds with a note, shown on a terminal or in a notebook only."""
    words = [TextColumn(text) for text in ("round {task.completed:.0f}/{task.total:.0f}", "{task.fields[note]}")]
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), *words, TimeRemainingColumn(compact=True))
    bar = Bars(*columns, console=console, disable=not _animated(console))
    return bar, bar.add_task(label, total=total, completed=done, note="")


@contextmanager
def download_progress(console: Console) -> Iterator[Callable[[int, int | None, str], None]]:
    """Give a callback (done, total, file name) that moves one bar per file."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def moved(done: int, total: int | None, name: str) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield moved
