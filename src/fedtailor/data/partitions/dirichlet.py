"""The usual label skew of the personalized literature: per-class Dirichlet shares under a cap on client size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import (
    Deal,
    Partition,
    capped_counts,
    check_clients,
    class_sizes,
    draw_until,
    hand_out,
    hold_out,
    partitions,
)
from fedtailor.data.pool import Pool
from fedtailor.registry import option


@partitions.register("dirichlet", "practical", "pfllib-dirichlet")
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is cut by shares ~ Dir(beta) among the clients that hold less than an equal share so far, and the whole is drawn again
    until every client has the minimum."""

    paper: ClassVar[str] = (
        "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized FL, AAAI 2023 (as in PFLlib)"
    )

    beta: float = option(
        0.1, "concentration: the smaller, the more each class sticks to few clients", above=0, at_most=1e6
    )
    minimum: int | None = option(
        None, "fewest samples of a client (none: 10 / test_share, but at most half an equal share)", at_least=1
    )

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        minimum = least(len(pool), clients, self.test_share) if self.minimum is None else self.minimum
        sizes, concentration = class_sizes(pool), np.full(clients, self.beta)

        def draw() -> np.ndarray:
            shares = rng.dirichlet(concentration, size=pool.classes)
            return capped_counts(shares, sizes, len(pool) / clients, self.beta, rng)

        counts = draw_until(minimum, draw, pool, clients)
        return hold_out(hand_out(np.arange(len(pool)), pool.y, counts, rng), self.test_share, rng, pool=pool)


def least(samples: int, clients: int, test_share: float) -> int:
    """Return the literature's minimum of samples per client: a batch of 10 in the test part, but at most half an equal share."""
    half = samples / clients / 2
    return max(1, int(min(10 / test_share, half) if test_share else half))
