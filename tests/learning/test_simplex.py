"""Quadratic programs over shares against a general solver and the conditions an optimum has to meet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedtailor.learning import simplex
from fedtailor.learning.simplex import argmin_on_simplex, onto_simplex


def value(a, q, b):
    return a @ q @ a / 2 - b @ a


def by_scipy(q: np.ndarray, b: np.ndarray) -> np.ndarray:
    n = len(b)
    return minimize(
        value,
        np.full(n, 1 / n),
        args=(q, b),
        jac=lambda a, q, b: q @ a - b,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    ).x


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_the_same_shares_as_a_general_solver(n):
    rng = np.random.default_rng(n)
    factor = rng.normal(size=(n, n + 2))
    q, b = factor @ factor.T / n + 0.05 * np.eye(n), rng.normal(size=(6, n))
    found = argmin_on_simplex(torch.from_numpy(q), torch.from_numpy(b)).numpy()
    assert (found >= 0).all()
    assert np.allclose(found.sum(1), 1, atol=1e-12)
    assert n < 5 or (found == 0).any()  # some bounds are at work
    for a, row in zip(found, b, strict=True):
        np.testing.assert_allclose(a, by_scipy(q, row), atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_singular_matrices_have_a_best_value_too(rank):
    rng = np.random.default_rng(rank)
    factor = rng.normal(size=(8, rank))
    q, b = factor @ factor.T, rng.normal(size=8) * (rank > 1)
    a = argmin_on_simplex(torch.from_numpy(q), torch.from_numpy(b)).numpy()
    assert a.min() >= 0
    assert a.sum() == pytest.approx(1)
    assert value(a, q, b) <= value(by_scipy(q, b), q, b) + 1e-6


def test_a_hundred_shares_meet_the_conditions_of_an_optimum():
    rng = torch.Generator().manual_seed(1)
    factor = torch.randn(100, 30, generator=rng, dtype=torch.float64)
    gram = factor @ factor.T
    q = gram + torch.rand(100, generator=rng, dtype=torch.float64).diag()
    a = argmin_on_simplex(q, gram[:20])
    slope = a @ q - gram[:20]
    lowest = slope.min(1, keepdim=True).values
    assert (slope - lowest)[a > 0].max() < 1e-7  # equal where a share is positive, nowhere lower
    torch.testing.assert_close(a.sum(1), torch.ones(20, dtype=torch.float64))


def test_one_share_is_all():
    assert argmin_on_simplex(torch.tensor([[3.0]]), torch.tensor([[-5.0]])).tolist() == [[1.0]]
    assert argmin_on_simplex(torch.zeros(1, 1), torch.zeros(1)).tolist() == [1.0]


def test_the_nearest_shares():
    rows = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [0.5, 0.5, -1.0], [1.0, 1.0, 1.0], [0.9, 0.7, 0.0]])
    expected = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3] * 3, [0.6, 0.4, 0.0]])
    torch.testing.assert_close(onto_simplex(rows), expected)


@pytest.mark.parametrize("steps", [0, 3])
def test_the_end_is_exact_wherever_the_descent_stops(steps, monkeypatch):
    rng = torch.Generator().manual_seed(2)
    factor = torch.randn(15, 6, generator=rng, dtype=torch.float64)
    q, b = factor @ factor.T + 0.1 * torch.eye(15), torch.randn(4, 15, generator=rng, dtype=torch.float64)
    usual = argmin_on_simplex(q, b)
    exchanged = simplex._exchanged
    monkeypatch.setattr(simplex, "_exchanged", lambda q, b: exchanged(q, b, steps))
    torch.testing.assert_close(argmin_on_simplex(q, b), usual, rtol=0, atol=1e-9)
    monkeypatch.setattr(simplex, "_exchanged", lambda q, b: torch.eye(15, dtype=q.dtype)[: len(b)])  # from a corner
    torch.testing.assert_close(argmin_on_simplex(q, b), usual, rtol=0, atol=1e-9)


def program(n: int, dimensions: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """What FedPAC asks for: points in some groups, known up to a noise of which the variances are told."""
    rng = torch.Generator().manual_seed(n)
    variance = torch.rand(n, generator=rng, dtype=torch.float64) + 0.1
    groups = torch.randn(7, dimensions, generator=rng, dtype=torch.float64)
    noise = torch.randn(n, dimensions, generator=rng, dtype=torch.float64)
    points = groups[torch.arange(n) % 7] + noise * (variance / dimensions).sqrt().unsqueeze(1)
    gram = points @ points.T
    return gram + variance.diag(), gram


def test_hundreds_of_programs_at_once_end_where_each_alone_does(monkeypatch):
    q, b = program(250)
    corners = torch.eye(250, dtype=torch.float64)
    alone = torch.stack([simplex._active_set(q, row, corner) for row, corner in zip(b[:15], corners, strict=False)])
    assert alone.gt(0).sum(1).max() > simplex.FEW  # more are positive than at the start
    monkeypatch.setattr(simplex, "_active_set", None)  # no row has to be ended one by one
    together = argmin_on_simplex(q, b)
    torch.testing.assert_close(together[:15], alone, rtol=0, atol=1e-9)
    slope = together @ q - b
    lowest = slope.min(1, keepdim=True).values
    assert (slope - lowest)[together > 0].max() < 1e-8
    assert together.min() == 0
    torch.testing.assert_close(together.sum(1), torch.ones(250, dtype=torch.float64))
    assert torch.equal(together, argmin_on_simplex(q, b))


def test_rows_that_exchange_no_further_are_ended_one_by_one(monkeypatch):
    q, b = program(60)
    usual = argmin_on_simplex(q, b)
    exchanged = simplex._exchanged
    for steps in (1, 2, 4):
        monkeypatch.setattr(simplex, "_exchanged", lambda q, b, steps=steps: exchanged(q, b, steps))
        torch.testing.assert_close(argmin_on_simplex(q, b), usual, rtol=0, atol=1e-9)


def test_where_all_shares_are_positive_one_system_gives_them(monkeypatch):
    monkeypatch.setattr(simplex, "_exchanged", None)
    variance = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    found = argmin_on_simplex(variance.diag(), torch.zeros(3, 4, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([[8.0, 4.0, 2.0, 1.0]] * 3, dtype=torch.float64) / 15)


def test_systems_too_large_to_be_solved_together_give_the_same(monkeypatch):
    q, b = program(60)
    usual = argmin_on_simplex(q, b)
    monkeypatch.setattr(simplex, "BLOCK", 1)
    torch.testing.assert_close(argmin_on_simplex(q, b), usual, rtol=0, atol=1e-12)
