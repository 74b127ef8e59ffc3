from __future__ import annotations

import math

import pytest

from fedtailor.learning.search import argmin_convex


@pytest.mark.parametrize("minimum", [0.0, 1e-7, 0.3, 1 / 3, 0.999999, 1.0])
def test_the_minimum_of_a_parabola(minimum):
    assert argmin_convex(lambda a: 2 * (a - minimum)) == pytest.approx(minimum, abs=1e-14)


def test_ends_are_exact_and_a_level_function_gives_the_lower_one():
    assert argmin_convex(lambda a: 1.0) == 0.0
    assert argmin_convex(lambda a: -1.0) == 1.0
    assert argmin_convex(lambda a: 0.0) == 0.0
    assert argmin_convex(lambda a: a - 9, low=2.0, high=5.0) == 5.0


def test_a_flat_and_then_steep_function():
    assert argmin_convex(lambda a: math.exp(50 * (a - 0.9)) - 1e-9) == pytest.approx(
        0.9 + math.log(1e-9) / 50, abs=1e-12
    )


def test_a_kink_and_a_jump():
    assert argmin_convex(lambda a: -1e-9 if a < 0.7 else 1e9) == pytest.approx(0.7, abs=1e-14)
    assert argmin_convex(lambda a: max(a - 0.5, 1e-3 * (a - 0.5)), low=-4.0, high=8.0) == pytest.approx(0.5, abs=1e-14)


def test_an_end_where_the_derivative_is_not_a_number_is_returned():
    assert argmin_convex(lambda a: math.nan) == 0.0
    assert argmin_convex(lambda a: math.nan if a == 1.0 else -1.0) == 1.0


def test_a_derivative_is_asked_for_seldom():
    asked = []
    argmin_convex(lambda a: asked.append(a) or math.tanh(9 * (a - 0.4)))
    assert len(asked) < 20
