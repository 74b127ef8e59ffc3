"""Per-client Dirichlet class shares, with equal client sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import Deal, Partition, check_clients, class_sizes, hand_out, hold_out, partitions
from fedtailor.data.pool import Pool
from fedtailor.registry import option


@partitions.register("dirichlet-client", "hsu", "lda")
@dataclass(frozen=True)
class DirichletClient(Partition):
    """Each client draws its class shares ~ Dir(beta, …, beta) and then its samples by them, without replacement, until all are used up
    and every client has an equal part (up to one sample). The paper's α is beta · classes."""

    paper: ClassVar[str] = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for FL, 2019"

    beta: float = option(0.1, "concentration: the smaller, the fewer classes a client holds", above=0, at_most=1e6)

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        shares = rng.dirichlet(np.full(pool.classes, self.beta), size=clients)
        quota = np.full(clients, len(pool) // clients) + (np.arange(clients) < len(pool) % clients)
        counts = self._counts(shares, class_sizes(pool), quota, rng)
        return hold_out(hand_out(np.arange(len(pool)), pool.y, counts, rng), self.test_share, rng, pool=pool)

    def _counts(self, shares: np.ndarray, left: np.ndarray, quota: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Fill quotas in rounds: each client draws by its shares of the classes left; an oversubscribed class is split at random."""
        counts = np.zeros((len(left), len(quota)), np.int64)
        left = left.copy()
        while left.any():
            needy = np.flatnonzero(quota - counts.sum(axis=0))
            there = np.flatnonzero(left)
            tastes = shares[np.ix_(needy, there)]
            lost = ~tastes.any(
                axis=1
            )  # all classes that these clients have a share of are used up: draw new shares among the rest
            tastes[lost] = rng.dirichlet(np.full(len(there), self.beta), size=int(lost.sum()))
            shares[np.ix_(needy, there)] = tastes
            tastes /= tastes.sum(axis=1, keepdims=True)
            wishes = rng.multinomial(quota[needy] - counts[:, needy].sum(axis=0), tastes)
            for k, wished in zip(there, wishes.T, strict=True):
                if wished.sum() > left[k]:
                    wished = rng.multivariate_hypergeometric(wished, left[k])
                counts[k, needy] += wished
                left[k] -= wished.sum()
        return counts
