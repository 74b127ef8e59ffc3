"""Intervals against scipy's own, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedtailor.analysis.intervals import Interval, student, wilson


def test_the_interval_of_a_mean_is_students():
    values = np.array([[1.0, 5.0, 2.0], [2.0, 5.0, 4.0], [4.0, 5.0, 9.0]])
    found = student(values)
    for k in (0, 2):
        known = stats.t.interval(0.95, 2, loc=values[:, k].mean(), scale=stats.sem(values[:, k]))
        assert (found.low[k], found.high[k]) == pytest.approx(known)
    assert found.low[1] == found.high[1] == 5  # no spread, no width
    assert float(student(values[:, 0]).high) == found.high[0]


def test_one_value_has_no_interval():
    found = student(np.array([[0.5, 0.7]]))
    assert found.values.tolist() == [0.5, 0.7]
    assert np.isnan([found.low, found.high]).all()


def test_a_difference_has_newcombes_interval():
    one, other = Interval(*map(np.array, (0.8, 0.5, 0.9))), Interval(*map(np.array, (0.5, 0.1, 0.7)))
    gap = one - other
    assert gap.values == pytest.approx(0.3)
    assert gap.low == pytest.approx(0.3 - np.hypot(0.3, 0.2))
    assert gap.high == pytest.approx(0.3 + np.hypot(0.1, 0.4))


def test_intervals_of_shares_are_wilsons():
    share, count = np.array([0.8, 0.0, 1.0, 0.5]), np.array([10, 20, 10, 0])
    low, high = wilson(share, count)
    for k in range(3):
        known = stats.binomtest(round(share[k] * count[k]), int(count[k])).proportion_ci(method="wilson")
        assert (low[k], high[k]) == pytest.approx((known.low, known.high), abs=1e-6)
    assert high[1] > 0.1  # none of twenty right is not known to be none at all
    assert np.isnan([low[3], high[3]]).all()


def test_an_interval_of_shares_ends_at_0_and_1_whatever_is_rounded():
    """A table once showed an interval from -0."""
    counts = np.arange(1, 300)
    assert {f"{low:.0f}" for low in wilson(np.zeros(299), counts)[0]} == {"0"}
    assert (wilson(np.ones(299), counts)[1] == 1).all()
