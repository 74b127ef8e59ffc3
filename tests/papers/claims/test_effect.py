"""The lead of one arm over another, and the verdict, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedtailor.papers.claims.effect import Effect, effect, together, verdict

LEADS = [2.0, 3.0, 1.0, 4.0, 2.5]  # mean 2.5, sample deviation 1.1180


def found(low: float, high: float, seeds: int = 5) -> Effect:
    return Effect(tuple(range(seeds)), (0.0,) * seeds, (low + high) / 2, low, high, 0.5, 0.5)


def test_the_interval_is_students_over_the_seeds_mean_gaps():
    rng = np.random.default_rng(0)
    pairs = {}
    for seed, lead in enumerate(LEADS):
        other = rng.uniform(0.2, 0.6, size=7)
        noise = rng.normal(scale=0.05, size=7)
        pairs[seed] = (other + lead / 100 + noise - noise.mean(), other)
    measured = effect(pairs)
    expected = stats.ttest_1samp(LEADS, 0).confidence_interval(0.95)
    assert measured.leads == pytest.approx(LEADS)
    assert (measured.lead, measured.low, measured.high) == pytest.approx((2.5, expected.low, expected.high))
    gaps = np.concatenate([one - other for one, other in pairs.values()])
    assert (measured.better, measured.worse) == pytest.approx(((gaps > 0).mean(), (gaps < 0).mean()))


def test_clients_without_a_score_on_either_side_are_left_out_of_the_pair():
    measured = effect({0: (np.array([0.9, np.nan, 0.5]), np.array([0.8, 0.1, np.nan]))})
    assert measured.leads == pytest.approx((10.0,))
    assert (measured.low, measured.high) == (-np.inf, np.inf)
    assert effect({}).seeds == ()


@pytest.mark.parametrize(
    ("low", "high", "published", "gain", "within", "expected"),
    [
        (0.1, 2.0, None, 0.0, None, ("holds", "")),
        (-2.0, 0.4, None, 0.0, None, ("does not", "")),
        (-2.0, 0.4, 0.1, 0.0, None, ("open", "too close to tell")),  # a published lead of 0.1 could still be there
        (-2.0, 0.05, 0.1, 0.0, None, ("does not", "")),
        (-0.5, 1.0, None, 0.0, None, ("open", "too close to tell")),
        (0.1, 2.0, None, -0.2, None, ("open", "not converged")),  # the rival was catching up
        (0.1, 2.0, None, 5.0, None, ("holds", "")),
        (-2.0, -1.0, None, 1.6, None, ("open", "not converged")),
        (-0.9, 0.5, None, 0.0, 1.0, ("holds", "")),
        (-3.0, -1.1, None, 0.0, 1.0, ("does not", "")),
        (-1.5, 0.0, None, 0.0, 1.0, ("open", "too close to tell")),
    ],
)
def test_verdicts(low, high, published, gain, within, expected):
    assert verdict(found(low, high), published, gain, within) == expected


def test_four_seeds_are_too_few():
    assert verdict(found(1.0, 2.0, seeds=4), None, 0.0) == ("open", "4 of 5 seeds")


def test_a_claim_stands_with_its_weakest_comparison():
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "open"]) == "open"
    assert together(["holds", "open", "does not"]) == "does not"
