from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor.learning.search import argmin_convex, best_share


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


@pytest.mark.parametrize(("drawn", "temperature"), [(0.0, 1.0), (0.5, 1.0), (0.5, 3.0)])
def test_the_best_share_is_that_of_a_grid(drawn, temperature):
    stream = torch.Generator().manual_seed(4)
    own, other = torch.randn(2, 30, 3, generator=stream, dtype=torch.float64)
    y = torch.randint(3, (30,), generator=stream)
    p, q = (torch.softmax(logits / temperature, 1) for logits in (own, other))
    divergence = (p * (p / q).log()).sum(1).mean()

    def objective(share: float) -> float:
        return float(F.cross_entropy(share * own + (1 - share) * other, y) + drawn * share**2 * divergence)

    found = best_share(own, other, y, drawn, temperature)
    assert 0 < found < 1
    assert objective(found) <= min(map(objective, np.linspace(0, 1, 1001))) + 1e-12
