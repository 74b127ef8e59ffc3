"""Live progress: a bar with round, accuracy and time left on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedtailor.experiment.headline import Headline

SECONDS_BETWEEN_LINES = 5.0


class RunProgress:
    """Watches the records of one run."""

    def __init__(self, console: Console, label: str, steps: int) -> None:
        self.console = console
        self.label = label
        self.steps = steps
        self.bar = _rounds_bar(console, "accuracy")
        self.task = self.bar.add_task(label, total=steps, accuracy="")
        self._said = self._began = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def watch(self, record: dict[str, Any]) -> None:
        done = record["round"] + record.get("step", 0)
        headline = Headline.of(record)
        mean = record[headline.mean]
        accuracy = f"{headline.name} {headline.written(mean)}" if mean is not None else ""
        self.bar.update(self.task, completed=done)
        if accuracy:
            self.bar.update(self.task, accuracy=accuracy)
        self._first = done - 1 if self._first is None else self._first
        now = time.monotonic()
        if not self.console.is_terminal and (done == self.steps or now - self._said >= SECONDS_BETWEEN_LINES):
            left = (now - self._began) / (done - self._first) * (self.steps - done)
            self.console.print(
                f"{self.label}: round {done}/{self.steps}, {accuracy}, {left:.0f} s left", soft_wrap=True
            )
            self._said = now


class GridProgress:
    """Watches the runs of a grid, all rounds of all runs as one bar."""

    def __init__(self, console: Console, steps: dict[str, int]) -> None:
        self.console = console
        self.steps = steps
        self.done = dict.fromkeys(steps, 0)
        self.bar = _rounds_bar(console, "running")
        self.task = self.bar.add_task("runs", total=sum(steps.values()), running="")
        self._said, self._told = time.monotonic(), 0

    def update(self, done: dict[str, int], running: list[str]) -> None:
        """`done` has the rounds of the runs that have moved."""
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


def _rounds_bar(console: Console, extra: str) -> Progress:
    """A bar of rounds with one more field, shown on a terminal only."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn(f"{{task.fields[{extra}]}}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def download_progress(console: Console) -> Iterator[Callable[[int, int | None, str], None]]:
    """A callback (done, total, file name) that moves one bar for each file."""
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console
    ) as bars:
        tasks: dict[str, Any] = {}

        def moved(done: int, total: int | None, name: str) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield moved
