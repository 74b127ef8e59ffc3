"""Live progress: a bar with round, metric and time left on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from fedtailor.experiment.callbacks import Callback, Record
from fedtailor.experiment.headline import Headline
from fedtailor.terminal import Terminal

if TYPE_CHECKING:
    from fedtailor.experiment.simulation import Simulation

SECONDS_BETWEEN_LINES = 5.0


class TimeLeft(ProgressColumn):
    """Counts down to the expected end of a task, `end`; empty as long as there is none."""

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        left = "" if end is None else f"{timedelta(seconds=round(max(0.0, end - time.monotonic())))} left"
        return Text(left, "progress.remaining")


class RoundsBar:
    """How many rounds are done: a bar with the time left on a terminal or in a notebook, a line every few seconds elsewhere."""

    def __init__(self, console: Console, label: str, rounds: int, done: int = 0) -> None:
        self.console, self.rounds, self._said = console, rounds, time.monotonic()
        self.bar = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeLeft(),
            console=console,
            disable=not (console.is_terminal or console.is_jupyter),
            speed_estimate_period=math.inf,  # over all rounds but the first, which also starts workers and fills caches
            get_time=time.monotonic,
        )
        self.task = self.bar.add_task(label, total=rounds, completed=done, note="", end=None)

    def update(self, label: str, done: int, note: str) -> None:
        """Move on to so many rounds; what is to be noted stands beside them."""
        (task,) = self.bar.tasks
        if done > task.completed:
            self.bar.update(self.task, completed=done, description=label, note=note)
            left, now = task.time_remaining, time.monotonic()
            self.bar.update(self.task, end=None if left is None else now + left)
            if self.bar.disable and (done == self.rounds or now - self._said >= SECONDS_BETWEEN_LINES):
                facts = [f"round {done}/{self.rounds}", note, f"{left:.0f} s left" if left else ""]
                self.console.print(f"{label}: {', '.join(filter(None, facts))}", soft_wrap=True)
                self._said = now
        self.bar.update(self.task, description=label, note=note)


class Progress(Callback):
    """Show the progress of a run."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal(stderr=True)

    def on_start(self, simulation: Simulation) -> None:
        self.label, self.value = f"{simulation.method.name} seed {simulation.protocol.seed}", ""
        steps = simulation.protocol.rounds + simulation.method.closing_steps
        self.rounds = RoundsBar(self.console, self.label, steps, simulation.round)
        self.rounds.bar.start()

    def on_round(self, simulation: Simulation, record: Record) -> None:
        metric = Headline.of_record(record)
        mean = metric.of(record, "mean")
        if math.isfinite(mean):
            self.value = f"{metric.title} {metric.shown(mean)}"
        self.rounds.update(self.label, record["round"] + record.get("step", 0), self.value)

    def on_end(self, simulation: Simulation) -> None:
        self.rounds.bar.stop()


class GridProgress:
    """Show the progress of a grid: all rounds of all runs as one bar."""

    def __init__(self, console: Console, steps: Mapping[str, int]) -> None:
        self.steps, self.done = steps, dict.fromkeys(steps, 0)
        self.rounds = RoundsBar(console, "runs", sum(steps.values()))
        self.bar = self.rounds.bar

    def update(self, done: Mapping[str, int], running: Sequence[str]) -> None:
        """Update the bar; `done` has the rounds of the runs that advanced."""
        self.done |= done
        finished = sum(self.done[name] >= count for name, count in self.steps.items())
        others = f" and {len(running) - 1} more" if len(running) > 1 else ""
        at = f"{running[0][:40]}{others}" if running else ""
        self.rounds.update(f"runs {finished}/{len(self.steps)}", sum(self.done.values()), at)


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
