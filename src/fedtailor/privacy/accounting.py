"""How much privacy rounds of the sampled Gaussian mechanism spend.

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
from functools import cache
from typing import Literal

from fedtailor.errors import FedTailorError
from fedtailor.extras import extra
from fedtailor.privacy.sampled_gaussian import epsilon_of, rounded_up

Participation = Literal["poisson", "fixed"]

SMALLEST, LARGEST = 0.05, 1e5  # noise multipliers; an ε that needs more is refused
FINE, COARSE = 1e-4, 1e-3  # steps in which the privacy loss is counted
FEW_ORDERS = (1.5, *range(2, 20), *range(20, 64, 4), 128, 256)  # of RDP, where a quick bound is enough


@dataclass(frozen=True)
class Sampling:
    """How the clients of a round are drawn: each with a chance of `rate` (poisson), or `rate` of `clients` exactly (fixed).

    Poisson sampling with rate 1, and a fixed number that is all, are full participation. So is any sampling where those that ε is to
    protect against know who was drawn.
    """

    kind: Participation
    rate: float
    clients: int
    known: bool = False  # who was drawn

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
        """Whether each client has to be counted as one of every round."""
        return self.known or (self.rate >= 1 if self.kind == "poisson" else self.count >= self.clients)

    @property
    def chance(self) -> float:
        """The chance of a client to be drawn, as far as it can be counted on."""
        return 1.0 if self.full else self.rate


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
            return min(self.rdp_epsilon(rounds), epsilon_of(1.0, self.noise, rounds, self.delta))
        return epsilon_of(self.sampling.chance, self.noise, rounds, self.delta, self.step)

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
    while rounded_up(low) < rounded_up(high) and high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return rounded_up(high)


def _rounder(rounds: int) -> int:
    """Return the least of 1, 2, 3, 4, 6, 8, 12 … that is not less."""
    power = 1 << (rounds - 1).bit_length()
    return power * 3 // 4 if rounds <= power * 3 // 4 and power >= 4 else power


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
            accountant.compose(dp.PoissonSampledDpEvent(sampling.chance, dp.GaussianDpEvent(noise)))
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
