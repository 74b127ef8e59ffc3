"""Per-class Dirichlet shares without a cap on client size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import (
    Deal,
    Partition,
    check_clients,
    class_sizes,
    cut,
    draw_until,
    hand_out,
    hold_out,
    partitions,
)
from fedtailor.data.pool import Pool
from fedtailor.registry import option


@partitions.register("dirichlet-plain", "fl-bench-dirichlet")
@dataclass(frozen=True)
class DirichletPlain(Partition):
    """Each class is cut by shares ~ Dir(beta) among all clients, with no cap on client size; drawn again until every client has the
    minimum."""

    paper: ClassVar[str] = "Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019"

    beta: float = option(
        0.1, "concentration: the smaller, the more each class sticks to few clients", above=0, at_most=1e6
    )
    minimum: int = option(10, "fewest samples of a client", at_least=1)

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        sizes, concentration = class_sizes(pool), np.full(clients, self.beta)

        def draw() -> np.ndarray:
            shares = rng.dirichlet(concentration, size=pool.classes)
            return np.stack([cut(p, size) for p, size in zip(shares, sizes, strict=True)])

        counts = draw_until(self.minimum, draw, pool, clients)
        return hold_out(hand_out(np.arange(len(pool)), pool.y, counts, rng), self.test_share, rng, pool=pool)
