"""Live progress: a bar with round, metric and time left on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

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
        self.bar = _rounds_bar(self.console, "value", TimeLeft())
        self.task = self.bar.add_task(self.label, total=self.steps, completed=simulation.round, value="", end=None)
        self.pace = Pace()
        self._said = time.monotonic()
        self.bar.start()

    def on_round(self, simulation: Simulation, record: Record) -> None:
        done = record["round"] + record.get("step", 0)
        metric = Headline.of_record(record)
        mean = metric.of(record, "mean")
        value = f"{metric.title} {metric.shown(mean)}" if np.isfinite(mean) else ""
        now = time.monotonic()
        left = self.pace.left(done, self.steps, now)
        self.bar.update(self.task, completed=done, end=None if left is None else now + left)
        if value:
            self.bar.update(self.task, value=value)
        if not _animated(self.console) and (done == self.steps or now - self._said >= SECONDS_BETWEEN_LINES):
            facts = [f"round {done}/{self.steps}", value, "" if not left else f"{left:.0f} s left"]
            self.console.print(f"{self.label}: {', '.join(filter(None, facts))}", soft_wrap=True)
            self._said = now

    def on_end(self, simulation: Simulation) -> None:
        self.bar.stop()


class Pace:
    """Estimates the time left from the rounds after the first, which also starts workers and fills caches."""

    def __init__(self) -> None:
        self._warm: tuple[int, float] | None = None  # the first round that was seen, and when it ended

    def left(self, done: int, steps: int, now: float) -> float | None:
        """Return the seconds left when `done` of `steps` rounds are done `now`; None until two rounds have ended."""
        if self._warm is None:
            self._warm = done, now
        first, began = self._warm
        return (now - began) / (done - first) * (steps - done) if done > first else None


class TimeLeft(ProgressColumn):
    """Counts down to the expected end of a task, `end`; empty as long as there is none."""

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        if end is None:
            return Text("")
        minutes, seconds = divmod(int(max(0.0, end - time.monotonic()) + 0.5), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return Text(f"{clock} left", "progress.remaining")


class GridProgress:
    """Show the progress of a grid: all rounds of all runs as one bar."""

    def __init__(self, console: Console, steps: dict[str, int]) -> None:
        self.console = console
        self.steps = steps
        self.done = dict.fromkeys(steps, 0)
        self.bar = _rounds_bar(console, "running", TimeRemainingColumn(compact=True))
        self.task = self.bar.add_task("runs", total=sum(steps.values()), running="")
        self._said, self._told = time.monotonic(), 0

    def update(self, done: dict[str, int], running: list[str]) -> None:
        """Update the bar; `done` has the rounds of the runs that advanced."""
        self.done |= done
        finished = sum(self.done[name] >= count for name, count in self.steps.items())
        rounds, label = sum(self.done.values()), f"runs {finished}/{len(self.steps)}"
        others = f" and {len(running) - 1} more" if len(running) > 1 else ""
        self.bar.update(
            self.task, completed=rounds, description=label, running=running[0][:40] + others if running else ""
        )
        now = time.monotonic()
        if not self.console.is_terminal and rounds > self._told and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said, self._told = now, rounds
            total = sum(self.steps.values())
            self.console.print(f"{label}, round {rounds}/{total}, at {', '.join(running)}", soft_wrap=True)


def _animated(console: Console) -> bool:
    return console.is_terminal or console.is_jupyter


def _rounds_bar(console: Console, extra: str, left: ProgressColumn) -> Bars:
    """Make a bar of rounds with one extra field and the time left, shown on a terminal or in a notebook only."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn(f"{{task.fields[{extra}]}}"),
        left,
        console=console,
        disable=not _animated(console),
    )


@contextmanager
def download_progress(console: Console) -> Iterator[Callable[[int, int | None, str], None]]:
    """Give a callback (done, total, file name) that moves one bar per file."""
    with Bars(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console
    ) as bars:
        tasks: dict[str, Any] = {}

        def moved(done: int, total: int | None, name: str) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield moved
