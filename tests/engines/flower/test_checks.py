"""Scores that a server takes: all of what was asked for, and nothing impossible."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedtailor.data.task import Task
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.checks import ReplyChecks
from fedtailor.engines.work import Work
from fedtailor.learning.metrics import selected
from fedtailor.learning.scoring import Score

METRICS = selected(Task((3,), 2, kind="binary"), ("auroc", "log_loss"))
HELD = Score(5, 6, 1.0, {"auroc": math.nan, "log_loss": 0.2})
HONEST = Score(7, 10, 2.0, {"auroc": 0.9, "log_loss": 0.2}, validation=HELD)


def refused(score: Score) -> dict[int, str]:
    look = ReplyChecks((), {0: (30, 10)}, few=4, metrics=METRICS, validation=0.2)
    return look.refused(Work.SCORE, {0: Outcome(score=score)}, {})


def test_an_honest_score_passes():
    assert refused(HONEST) == {}


@pytest.mark.parametrize(
    "score",
    [
        replace(HONEST, values={"auroc": 1.5, "log_loss": 0.2}),
        replace(HONEST, values={"auroc": 0.9, "log_loss": -0.1}),
        replace(HONEST, values={"auroc": 0.9}),
        replace(HONEST, values={"auroc": 0.9, "log_loss": 0.2, "rmse": 1.0}),
        replace(HONEST, validation=None),
        replace(HONEST, validation=replace(HELD, total=7)),
        replace(HONEST, validation=replace(HELD, values={})),
        replace(HONEST, correct=11),
    ],
)
def test_an_impossible_one_does_not(score):
    assert "impossible" in refused(score)[0]
