"""Progress: the rounds and the time left that it shows."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedtailor.experiment import progress
from fedtailor.experiment.progress import GridProgress, Progress, RoundsBar, TimeLeft


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


def test_the_bar_counts_down_between_rounds(clock):
    rounds = RoundsBar(Console(file=io.StringIO()), "run", 10)
    (task,) = rounds.bar.tasks

    def shown() -> str:
        return TimeLeft().render(task).plain

    for done, passed in ((1, 5000.0), (2, 512.0)):
        assert shown() == ""
        clock.now += passed
        rounds.update("run", done, "")
    assert shown() == "1:08:16 left"  # 8 rounds as long as the second
    clock.now += 25
    rounds.update("run", 2, "still at it")
    assert shown() == "1:07:51 left"
    clock.now += 9999
    assert shown() == "0:00:00 left"


def test_a_grid_is_one_bar_over_the_rounds_of_all_runs(clock):
    console = Console(file=io.StringIO(), width=120)
    grid = GridProgress(console, {"a": 2, "b": 4})
    grid.update({"a": 2}, [])
    clock.now += 10
    grid.update({"b": 1}, ["b"])
    clock.now += 10
    grid.update({"b": 3}, ["b", "c"])
    assert console.file.getvalue().splitlines() == [
        "runs 1/2: round 3/6, b, 30 s left",
        "runs 1/2: round 5/6, b and 1 more, 7 s left",
    ]
