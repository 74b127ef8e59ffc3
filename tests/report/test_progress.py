"""Progress: the time left that it shows."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedtailor.report import progress
from fedtailor.report.progress import Pace, Progress, TimeLeft


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def run(clock: Clock, seconds: list[float], *, begun: int = 0) -> list[str]:
    """Return the lines of a run whose rounds take so many seconds."""
    console = Console(file=io.StringIO(), width=120)
    simulation: Any = SimpleNamespace(
        method=SimpleNamespace(name="fedrep", closing_steps=0),
        protocol=SimpleNamespace(seed=0, rounds=begun + len(seconds)),
        round=begun,
    )
    shown = Progress(console)
    shown.on_start(simulation)
    for number, passed in enumerate(seconds, start=begun + 1):
        clock.now += passed
        shown.on_round(simulation, {"round": number, "phase": "round", "accuracy_mean": 0.5, "loss": 1.0})
    shown.on_end(simulation)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("begun", [0, 7])
def test_the_first_round_does_not_count(clock, begun):
    lines = run(clock, [50.0, *[10.0] * 9], begun=begun)
    assert "left" not in lines[0]
    assert lines[1].endswith("80 s left")  # it would be 240 with the first round
    assert lines[-2].endswith("10 s left")
    assert "left" not in lines[-1]


def test_the_bar_counts_down_from_the_later_rounds(clock):
    pace, column = Pace(), TimeLeft()
    assert pace.left(1, 10, 50.0) is None
    assert pace.left(3, 10, 70.0) == 70.0
    task: Any = SimpleNamespace(fields={"end": None})
    assert column.render(task).plain == ""
    task.fields["end"] = clock.now + 3725
    assert column.render(task).plain == "1:02:05 left"
    clock.now += 3700
    assert column.render(task).plain == "0:25 left"
    clock.now += 3700
    assert column.render(task).plain == "0:00 left"
