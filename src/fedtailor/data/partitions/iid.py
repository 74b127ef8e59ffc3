"""Clients that all draw from the same distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtailor.data.partition import Deal, Partition, check_clients, hold_out, partitions
from fedtailor.data.pool import Pool


@partitions.register("iid", "uniform")
@dataclass(frozen=True)
class Iid(Partition):
    """Samples are shuffled and dealt in equal parts (up to one sample): no client differs from another but by chance."""

    by_class = False

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        return hold_out(np.array_split(rng.permutation(len(pool)), clients), self.test_share, rng, pool=pool)
