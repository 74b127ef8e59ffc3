"""Accounting of private steps against other formulas: numerical integration, closed forms and dp-accounting's own accountants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event, pld, rdp
from scipy.stats import norm

from fedtailor.privacy.sampled_gaussian import ORDERS, _divergences, epsilon_bound, epsilon_of, noise_for


def one_step_delta(rate: float, noise: float, epsilon: float) -> float:
    """δ(ε) of one step by integrating max(0, P − e^ε Q) both ways, for P = (1 − q)N(0, σ²) + qN(1, σ²) and Q = N(0, σ²)."""
    x = np.linspace(-40 * noise, 40 * noise + 1, 2_000_001)
    q = norm.pdf(x, 0, noise)
    p = (1 - rate) * q + rate * norm.pdf(x, 1, noise)
    step = x[1] - x[0]
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum()) * step


@pytest.mark.parametrize(("rate", "noise", "delta"), [(0.1, 1.0, 1e-4), (0.5, 2.0, 1e-5)])
def test_epsilon_of_one_step_is_that_of_an_integral(rate: float, noise: float, delta: float) -> None:
    epsilon = epsilon_of(rate, noise, 1, delta)
    assert one_step_delta(rate, noise, epsilon) == pytest.approx(delta, rel=0.02)
    assert one_step_delta(rate, noise, epsilon) <= delta * (1 + 1e-3)


def test_all_samples_in_every_step_is_the_gaussian_mechanism() -> None:
    epsilon, mu = epsilon_of(1.0, 8.0, 50, 1e-5), math.sqrt(50) / 8  # Balle & Wang, 2018, theorem 8
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.05, 1.2, 100), (0.2, 3.0, 60)])
def test_epsilon_is_dp_accountings(rate: float, noise: float, steps: int) -> None:
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    exact = pld.PLDAccountant().compose(event, steps).get_epsilon(1e-5)
    assert exact <= epsilon_of(rate, noise, steps, 1e-5) <= exact + 2e-3
    accountant = rdp.RdpAccountant(orders=list(ORDERS))
    accountant.compose(event, steps)
    assert epsilon_bound(rate, noise, steps, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert epsilon_bound(rate, noise, steps, 1e-5) >= exact


def test_renyi_divergence_by_integration() -> None:
    x = np.linspace(-30, 40, 400_001)
    q = norm.pdf(x, 0, 1.5)
    p = 0.9 * q + 0.1 * norm.pdf(x, 1, 1.5)
    for order in (2, 5, 17):
        integral = math.log(((p / q) ** order * q).sum() * (x[1] - x[0])) / (order - 1)
        assert _divergences(0.1, 1.5)[ORDERS.index(order)] == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize(("rate", "steps", "epsilon"), [(0.1, 90, 4.0), (0.02, 500, 0.5), (1.0, 30, 2.0)])
def test_the_noise_found_spends_nearly_all_of_epsilon_and_no_more(rate: float, steps: int, epsilon: float) -> None:
    noise = noise_for(rate, steps, epsilon, 1e-5)
    assert 0.99 * epsilon <= epsilon_of(rate, noise, steps, 1e-5) <= epsilon


def test_no_steps_cost_nothing() -> None:
    assert epsilon_of(0.1, 1.0, 0, 1e-5) == epsilon_bound(0.1, 1.0, 0, 1e-5) == 0
