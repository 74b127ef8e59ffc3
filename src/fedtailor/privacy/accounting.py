"""How much privacy rounds of the Gaussian mechanism spend, by Google's dp-accounting.

ε is that of privacy loss distributions (PLD), which are tight; where everyone takes part, a closed form is exact. Rényi DP (RDP), looser
and cheap, is reported beside it. Both bound the ε of (ε, δ)-differential privacy of clients: with or without any one client's data, which
counts as zero where it is left out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal

from fedtailor.errors import FedTailorError
from fedtailor.extras import extra
from fedtailor.privacy.sampled_gaussian import gaussian_epsilon

Participation = Literal["poisson", "fixed"]

DIGITS = 4  # of a solved noise multiplier, rounded up: no more matter, and equal ones give equal bits on every machine
SMALLEST, LARGEST = 0.05, 1e5  # noise multipliers; an ε that needs more is refused
# Steps in which the privacy loss is counted; coarser ones are faster, and never give a smaller ε.
FINE, COARSE = 1e-4, 1e-3
FEW_ORDERS = (1.5, *range(2, 20), *range(20, 64, 4), 128, 256)  # of RDP, where a quick bound is enough


@dataclass(frozen=True)
class Sampling:
    """How the clients of a round are drawn: each with a chance of `rate` (poisson), or `rate` of `clients` exactly (fixed).

    Poisson sampling with rate 1, and a fixed number that is all, are full participation.
    """

    kind: Participation
    rate: float
    clients: int

    @property
    def expected(self) -> float:
        """The number of participants of a round that is expected, which sums are divided by."""
        return self.rate * self.clients if self.kind == "poisson" else float(self.count)

    @property
    def count(self) -> int:
        """The number of participants where that is fixed."""
        return max(1, math.floor(self.rate * self.clients + 1e-9))

    @property
    def full(self) -> bool:
        return self.rate >= 1 if self.kind == "poisson" else self.count >= self.clients


def default_delta(clients: int) -> float:
    """Return δ = N^−1.1, less than the chance to name one of N clients; at most a half.

    >>> round(default_delta(100), 5)
    0.00631
    """
    return min(0.5, max(clients, 1) ** -1.1)


@dataclass(frozen=True)
class Accountant:
    """What rounds spend in which clients are drawn by `sampling` and the sum gets Gaussian noise of `noise` times the clip."""

    noise: float
    sampling: Sampling
    delta: float
    step: float = FINE

    def epsilon(self, rounds: int) -> float:
        """Return the ε that so many rounds spend. It takes up to a second."""
        if rounds <= 0:
            return 0.0
        if self.sampling.kind == "fixed" and not self.sampling.full:
            # Sampling is accounted by RDP alone; that it is not there at all is a bound as well, and for large shares the better one.
            return min(self.rdp_epsilon(rounds), _pld_epsilon(self.noise, 1.0, rounds, self.delta, self.step))
        return _pld_epsilon(self.noise, min(self.sampling.rate, 1.0), rounds, self.delta, self.step)

    def rdp_epsilon(self, rounds: int) -> float:
        """Return the ε by Rényi DP, which is larger."""
        return _rdp_epsilon(self.noise, self.sampling, rounds, self.delta) if rounds > 0 else 0.0

    def spent(self, rounds: int, most: int) -> float:
        """Return a bound on ε after some rounds of `most`, for the record of each round: cheap, and exact after the last.

        It is the least of three: ε of all rounds, RDP's, and that of the next number of rounds in 1, 2, 3, 4, 6, 8, 12 …, counted coarsely.
        """
        bound = min(self.epsilon(max(rounds, most)), self.rdp_epsilon(rounds))
        if (rounder := _rounder(rounds)) >= most:
            return bound
        return min(replace(self, step=COARSE).epsilon(rounder), bound)

    def rounds_within(self, epsilon: float, most: int) -> int:
        """Return how many rounds, of at most `most`, spend no more than ε."""
        if self.epsilon(most) <= epsilon:
            return most
        low, high = 0, most  # ε(low) ≤ ε < ε(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle)
        return low


@cache
def solve_noise(epsilon: float, delta: float, sampling: Sampling, rounds: int) -> float:
    """Return the least noise multiplier, to four digits, with which so many rounds spend at most ε. It takes a few seconds."""

    def by_rdp(noise: float) -> bool:
        return _rdp_epsilon(noise, sampling, rounds, delta, FEW_ORDERS) <= epsilon

    def enough(noise: float) -> bool:
        return Accountant(noise, sampling, delta, COARSE).epsilon(rounds) <= epsilon

    high = 1.0
    while not by_rdp(high):
        high *= 2
        if high > LARGEST:
            raise FedTailorError(
                f"privacy.epsilon = {epsilon:g} in {rounds} rounds needs noise of more than {LARGEST:g} times the clip. Raise epsilon, or "
                "lower rounds or join."
            )
    while high > SMALLEST and by_rdp(high / 1.1):
        high /= 1.1
    while high > SMALLEST and enough(0.8 * high):  # RDP needs more noise than PLD, but not much more
        high *= 0.8
    low = 0.8 * high
    while _up(low) < _up(high) and high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _up(high)


def _up(noise: float) -> float:
    """Round up to four digits."""
    if noise <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(noise)) - DIGITS + 1)
    return float(f"{math.ceil(noise / unit - 1e-9) * unit:.{DIGITS}g}")


def _rounder(rounds: int) -> int:
    """Return the least of 1, 2, 3, 4, 6, 8, 12 … that is not less."""
    power = 1 << (rounds - 1).bit_length()
    return power * 3 // 4 if rounds <= power * 3 // 4 and power >= 4 else power


@lru_cache(maxsize=4)  # a distribution takes megabytes
def _pld_of_a_round(noise: float, rate: float, step: float) -> Any:
    with _quiet():
        from dp_accounting.pld import privacy_loss_distribution as pld

        return pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=step)


@cache
def _pld_epsilon(noise: float, rate: float, rounds: int, delta: float, step: float) -> float:
    if rate >= 1:  # rounds of the Gaussian mechanism are one with less noise
        return gaussian_epsilon(math.sqrt(rounds) / noise, delta)
    return float(_pld_of_a_round(noise, rate, step).self_compose(rounds).get_epsilon_for_delta(delta))


def _rdp_epsilon(
    noise: float, sampling: Sampling, rounds: int, delta: float, orders: tuple[float, ...] | None = None
) -> float:
    known, values = _rdp(noise, sampling, orders)
    with _quiet():
        from dp_accounting import rdp

        return float(rdp.compute_epsilon(known, [rounds * value for value in values], delta)[0])


@cache
def _rdp(
    noise: float, sampling: Sampling, orders: tuple[float, ...] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the orders α and the Rényi divergences of one round."""
    with _quiet():
        import dp_accounting as dp
        from dp_accounting import rdp

        if sampling.kind == "fixed" and not sampling.full:
            # To replace a client moves a sum by up to two clips, so that the noise is half as large in proportion.
            accountant = rdp.RdpAccountant(orders, neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
            gaussian = dp.GaussianDpEvent(noise / 2)
            accountant.compose(dp.SampledWithoutReplacementDpEvent(sampling.clients, sampling.count, gaussian))
        else:
            accountant = rdp.RdpAccountant(orders)
            accountant.compose(dp.PoissonSampledDpEvent(min(sampling.rate, 1.0), dp.GaussianDpEvent(noise)))
        return tuple(accountant._orders), tuple(float(value) for value in accountant._rdp)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep dp-accounting's notes on orders that it leaves out from the log."""
    logger = logging.getLogger("absl")
    before, logger.level = logger.level, logging.ERROR
    try:
        with extra("privacy", "Differential privacy"):
            yield
    finally:
        logger.level = before
