"""ε against dp-accounting's own accountants and against formulas that share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm

from fedtailor import FedTailorError
from fedtailor.privacy.accounting import Accountant, Sampling, _rounder, default_delta, solve_noise

dp = pytest.importorskip("dp_accounting")

GRID = [(2.0, 0.05, 40), (1.5, 0.02, 100), (4.0, 0.3, 20), (3.0, 1.0, 5)]
DELTA = 1e-4


def poisson(noise: float, rate: float, clients: int = 1000) -> Accountant:
    return Accountant(noise, Sampling("poisson", rate, clients), DELTA)


def event(noise: float, rate: float) -> object:
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))


@pytest.mark.parametrize(("noise", "rate", "rounds"), GRID)
def test_epsilon_is_that_of_the_accountants_of_dp_accounting(noise, rate, rounds):
    for ours, theirs in (
        (poisson(noise, rate).epsilon, dp.pld.PLDAccountant()),
        (poisson(noise, rate).rdp_epsilon, dp.rdp.RdpAccountant()),
    ):
        theirs.compose(event(noise, rate), rounds)
        assert ours(rounds) == pytest.approx(theirs.get_epsilon(DELTA), abs=1e-6)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (3.0, 5), (10.0, 100), (0.7, 2)])
def test_full_participation_is_the_analytic_gaussian_mechanism(noise, rounds):
    """Balle and Wang (2018), theorem 8: δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with μ = √T/z."""
    mu = math.sqrt(rounds) / noise
    excess = lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e + log_ndtr(-mu / 2 - e / mu)) - DELTA  # noqa: E731
    assert poisson(noise, 1.0).epsilon(rounds) == pytest.approx(brentq(excess, 0, 500), abs=1e-3)
    assert Accountant(noise, Sampling("fixed", 1.0, 9), DELTA).epsilon(rounds) == poisson(noise, 1.0).epsilon(rounds)


@pytest.mark.parametrize(("noise", "rate", "rounds"), GRID[:3])
def test_rdp_is_the_integral_of_the_sampled_gaussian(noise, rate, rounds):
    """Mironov et al. (2019): D_α = log E_{x ~ N(0, z²)} [(1 − q + q·e^{(2x − 1)/2z²})^α] / (α − 1), integrated here."""

    def divergence(alpha: float) -> float:
        def integrand(x: float) -> float:
            ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
            return math.exp(alpha * ratio + norm.logpdf(x, scale=noise))

        return math.log(quad(integrand, -40 * noise, alpha + 40 * noise, points=[0.0, alpha], limit=500)[0]) / (
            alpha - 1
        )

    orders = [1.5, 2, 3, 4, 6, 8, 12, 16, 24]
    ours = Accountant(noise, Sampling("poisson", rate, 1000), DELTA)
    bounds = [  # Canonne, Kamath and Steinke (2020), proposition 12
        rounds * divergence(a) + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a in orders
    ]
    theirs = dp.rdp.RdpAccountant(orders)
    theirs.compose(event(noise, rate), rounds)
    assert min(bounds) == pytest.approx(theirs.get_epsilon(DELTA), abs=1e-6)
    assert ours.epsilon(rounds) < ours.rdp_epsilon(rounds) <= min(bounds) + 1e-9  # which has more orders


@pytest.mark.parametrize(("rate", "rounds"), [(0.05, 20), (1.0, 4)])
def test_the_solved_noise_is_the_least_that_keeps_to_epsilon(rate, rounds):
    sampling = Sampling("poisson", rate, 500)
    noise = solve_noise(2.0, DELTA, sampling, rounds)
    assert Accountant(noise, sampling, DELTA).epsilon(rounds) <= 2.0
    assert Accountant(noise * 0.998, sampling, DELTA).epsilon(rounds) > 2.0
    assert float(f"{noise:.4g}") == noise


def test_a_fixed_number_of_sites_is_never_better_than_poisson_sampling_nor_worse_than_all():
    fixed = Accountant(2.0, Sampling("fixed", 0.05, 1000), DELTA).epsilon(20)
    assert poisson(2.0, 0.05).epsilon(20) < fixed < poisson(2.0, 1.0).epsilon(20)
    most = Accountant(2.0, Sampling("fixed", 0.9, 10), DELTA)
    assert most.epsilon(40) == poisson(2.0, 1.0).epsilon(40)  # sampling hides next to nothing
    assert Sampling("fixed", 0.25, 10).expected == 2
    assert Sampling("poisson", 0.25, 10).expected == 2.5


def test_what_is_spent_grows_and_is_exact_at_the_end():
    accountant = poisson(2.0, 0.05)
    spent = [accountant.spent(t, 10) for t in range(11)]
    assert spent == sorted(spent)
    assert spent[0] == 0
    assert spent[10] == accountant.epsilon(10)
    assert all(accountant.epsilon(t) <= spent[t] <= accountant.rdp_epsilon(t) + 1e-12 for t in range(1, 11))
    assert [_rounder(t) for t in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]


def test_rounds_within_a_budget():
    accountant = poisson(2.0, 0.05)
    within = accountant.rounds_within(accountant.epsilon(7), 20)
    assert within == 7
    assert accountant.rounds_within(100.0, 20) == 20
    assert accountant.rounds_within(1e-6, 20) == 0


def test_delta_and_the_impossible():
    assert default_delta(1000) == pytest.approx(1000**-1.1)
    assert default_delta(1) == 0.5
    with pytest.raises(FedTailorError, match="Raise epsilon"):
        solve_noise(1e-9, 1e-12, Sampling("poisson", 1.0, 10), 1000)
