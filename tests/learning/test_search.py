from __future__ import annotations

import math

import pytest

from fedtailor.learning.search import argmin_convex


@pytest.mark.parametrize("least", [0.0, 1e-7, 0.3, 1 / 3, 0.999999, 1.0])
def test_the_least_of_a_parabola(least):
    assert argmin_convex(lambda a: 2 * (a - least)) == pytest.approx(least, abs=1e-14)


def test_ends_are_exact_and_a_level_function_gives_the_lower_one():
    assert argmin_convex(lambda a: 1.0) == 0.0
    assert argmin_convex(lambda a: -1.0) == 1.0
    assert argmin_convex(lambda a: 0.0) == 0.0
    assert argmin_convex(lambda a: a - 9, low=2.0, high=5.0) == 5.0


def test_a_flat_and_then_steep_function():
    assert argmin_convex(lambda a: math.exp(50 * (a - 0.9)) - 1e-9) == pytest.approx(
        0.9 + math.log(1e-9) / 50, abs=1e-12
    )
