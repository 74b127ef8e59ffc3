"""The sampled Gaussian mechanism, which adds Gaussian noise to a sum over a Poisson sample: ε of many steps, and the noise for a given ε.

Google's dp-accounting computes ε by privacy loss distributions (PLD); without sampling, the formula of Balle and Wang (2018) is exact.
Rényi differential privacy (RDP) gives a looser bound at no cost. Rounds, in which clients are sampled, are accounted by `accounting`; here
is what private steps need, where each client has an ε of its own and all are solved for in seconds. Neighbouring data sets differ by one
record that is there or counts as nothing.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from fedtailor.errors import FedTailorError
from fedtailor.extras import extra

GRID = 1e-3  # in which the privacy loss is counted: finer steps take ten times as long, coarser ones never give a smaller ε
ORDERS = tuple(range(2, 65)) + tuple(
    2**k for k in range(7, 13)
)  # of the Rényi divergence; whole ones have a closed form
CLOSE = 0.998  # how much of the ε that is asked for the noise found has to use
FEWEST, MOST = 1e-2, 1e7  # noise multipliers that are sought


@cache
def epsilon_of(rate: float, noise: float, steps: int, delta: float, grid: float = GRID) -> float:
    """Return ε of so many steps on batches in which each record is with chance `rate`; noise is in multiples of the clip (PLD).

    >>> round(epsilon_of(rate=0.05, noise=1.0, steps=400, delta=1e-5), 2)
    6.7
    """
    if steps == 0:
        return 0.0
    if rate >= 1:
        return _gaussian_epsilon(math.sqrt(steps) / noise, delta)
    return float(_losses(rate, noise, grid).self_compose(steps).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4)  # a distribution takes megabytes
def _losses(rate: float, noise: float, grid: float) -> Any:
    """Return the privacy loss distribution of one step."""
    with extra("privacy", "Differential privacy"):  # slow to import, and needed only here
        from dp_accounting.pld import privacy_loss_distribution as pld
    return pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=grid)


def epsilon_bound(rate: float, noise: float, steps: int, delta: float) -> float:
    """Return an upper bound of ε (RDP): min over α of T·D_α + log(1 − 1/α) − log(δα)/(α − 1) (Balle et al., 2020)."""
    if steps == 0:
        return 0.0
    orders = np.array(ORDERS, float)
    bounds = steps * np.array(_divergences(rate, noise)) + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(bounds.min()))


def noise_for(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """Return a noise multiplier with which so many steps cost at most ε, and at least 99.7 % of it.

    >>> round(noise_for(rate=0.05, steps=400, epsilon=4, delta=1e-5), 2)
    1.34
    """
    log_noise, slope = math.log(_first_guess(rate, steps, epsilon, delta)), -1.2  # ε falls a little faster than 1/noise
    low: tuple[float, float] | None = None  # log noise and log(ε spent / ε) of the last try
    for _ in range(30):
        noise = math.exp(log_noise)
        over = math.log(max(epsilon_of(rate, noise, steps, delta), 1e-12) / epsilon)
        if math.log(CLOSE) <= over <= 0:
            return rounded_up(noise)
        if low is not None and abs(log_noise - low[0]) > 1e-9:
            slope = min((over - low[1]) / (log_noise - low[0]), -0.2)
        low = log_noise, over
        log_noise -= (over - math.log(CLOSE) / 2) / slope
    raise FedTailorError(
        f"No noise was found for ε = {epsilon:g} with δ = {delta:g} and {steps} steps. Ask for another ε."
    )


def rounded_up(noise: float) -> float:
    """Round up to four digits: no more matter, and the last bits of an accountant on another machine do not change those of a run."""
    unit = 10.0 ** (math.floor(math.log10(noise)) - 3)
    return float(f"{math.ceil(noise / unit - 1e-9) * unit:.4g}")


def _first_guess(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """Return the noise by the central limit theorem of Gaussian differential privacy (Bu et al., 2020): √T·q·√(exp(1/σ²) − 1) = μ."""
    from scipy.optimize import brentq  # slow to import

    mu = math.exp(
        brentq(lambda log_mu: _gaussian_delta(math.exp(log_mu), epsilon) - delta, math.log(1e-9), math.log(1e4))
    )
    if rate >= 1:
        return math.sqrt(steps) / mu
    return min(max(1 / math.sqrt(math.log1p((mu / rate) ** 2 / steps)), FEWEST), MOST)


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Return δ of a Gaussian mechanism that moves by μ standard deviations (Balle & Wang, 2018)."""
    from scipy.special import log_ndtr, ndtr

    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε of a Gaussian mechanism that moves by μ standard deviations."""
    from scipy.optimize import brentq

    if _gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    most = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)) + 1)
    return float(brentq(lambda epsilon: _gaussian_delta(mu, epsilon) - delta, 0.0, most, xtol=1e-9))


@cache
def _divergences(rate: float, noise: float) -> tuple[float, ...]:
    """Return the Rényi divergences of one step: log Σ_k C(α,k)(1−q)^(α−k) q^k exp(k(k−1)/2σ²), divided by α − 1 (Mironov et al., 2019)."""
    return tuple(_divergence(rate, noise, order) for order in ORDERS)


def _divergence(rate: float, noise: float, order: int) -> float:
    if rate >= 1:
        return order / (2 * noise**2)
    k = np.arange(order + 1.0)
    log_choose = math.lgamma(order + 1) - np.array([math.lgamma(i + 1) + math.lgamma(order - i + 1) for i in k])
    terms = log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * noise**2)
    return float(np.logaddexp.reduce(terms)) / (order - 1)
