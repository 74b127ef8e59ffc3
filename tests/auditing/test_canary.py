from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedtailor.auditing.canary import epsilon_bound, one_run, p_value


def test_without_delta_the_p_value_is_a_binomial_tail():
    right = math.e / (1 + math.e)
    assert p_value(15, 20, 100, 1.0, 0.0) == pytest.approx(sum(stats.binom.pmf(range(15, 21), 20, right)))


def test_with_delta_it_is_the_papers_sum():
    epsilon, delta, m, r, v = 0.7, 1e-4, 60, 30, 25
    right = 1 / (1 + math.exp(-epsilon))
    tail = sum(math.comb(r, k) * right**k * (1 - right) ** (r - k) for k in range(v, r + 1))
    chances = [math.comb(r, k) * right**k * (1 - right) ** (r - k) for k in range(r + 1)]
    worst = max(sum(chances[v - i : v]) / i for i in range(1, v + 1))
    assert p_value(v, r, m, epsilon, delta) == pytest.approx(tail + 2 * m * delta * worst)


def test_the_bound_is_where_the_p_value_crosses_the_level():
    bound = epsilon_bound(45, 50, 100, 1e-5)
    assert p_value(45, 50, 100, bound, 1e-5) == pytest.approx(0.05, abs=1e-9)
    assert epsilon_bound(25, 50, 100) == 0
    assert epsilon_bound(50, 50, 100) == pytest.approx(-math.log(0.05 ** (-1 / 50) - 1))
    assert epsilon_bound(45, 50, 100, 1e-3) < bound


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_holds_for_randomized_response(epsilon):
    """Randomized response is ε-private, and no guess can do better than its bits: the worst case of the theorem."""
    rng = np.random.default_rng(0)
    right = 1 / (1 + math.exp(-epsilon))

    def release(inside):
        return np.where(rng.random(len(inside)) < right, inside, ~inside) + 1e-6 * rng.random(len(inside))

    bounds = [epsilon_bound(*one_run(release, 200, rng), 200) for _ in range(100)]
    assert np.mean(np.array(bounds) <= epsilon) >= 0.93
    assert np.median(bounds) > 0.2 * epsilon


def test_without_noise_the_bound_is_the_most_that_can_be_shown():
    rng = np.random.default_rng(0)
    correct, guesses = one_run(lambda inside: inside + 0.0, 200, rng)
    assert (correct, guesses) == (100, 100)
    assert epsilon_bound(correct, guesses, 200, 1e-5) > 3
