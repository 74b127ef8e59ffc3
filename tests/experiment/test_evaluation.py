from __future__ import annotations

import math

import pytest

from fedtailor.experiment.evaluation import summarize
from fedtailor.learning.scoring import Score


def test_pooled_mean_spread_and_worst_decile_by_hand():
    scores = {0: Score(9, 10, 2.0), 1: Score(1, 2, 1.0), 2: Score(0, 0, 0.0)}
    now = summarize(scores)
    assert now["accuracy"] == pytest.approx(10 / 12)
    assert now["accuracy_mean"] == pytest.approx((0.9 + 0.5) / 2)
    assert now["loss"] == pytest.approx(3 / 12)
    assert now["spread"] == pytest.approx(0.2)
    assert now["worst_decile"] == pytest.approx(0.5)


def test_the_worst_decile_is_a_tenth_of_the_clients():
    scores = {i: Score(i, 100, 0.0) for i in range(25)}
    assert summarize(scores)["worst_decile"] == pytest.approx((0 + 1 + 2) / 300)


def test_nobody_to_test():
    assert all(math.isnan(v) for v in summarize({0: Score()}).values())
