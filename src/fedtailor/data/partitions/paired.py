"""Training and test parts dealt separately, by the same shares."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import Deal, Partition, capped_counts, check_clients, hand_out, partitions, refuse_empty
from fedtailor.data.pool import Pool
from fedtailor.registry import option

log = logging.getLogger("fedtailor")


@partitions.register("paired", "perada", "heart")
@dataclass(frozen=True)
class Paired(Partition):
    """The official training and test parts are cut by the same shares ~ Dir(beta) of each class, capped at an equal part per client.

    First every client gets `reserve` samples of each class in both parts (a class too small for that is dealt round-robin from client
    0), then the server its share of the training part. Without an official test part, `test_share` of each class becomes one.
    """

    paper: ClassVar[str] = "Xie et al., PerAda: Parameter-Efficient FL Personalization, CVPR 2024"

    beta: float = option(
        0.1, "concentration: the smaller, the more each class sticks to few clients", above=0, at_most=1e6
    )
    reserve: int = option(2, "samples of each class that every client gets first, in training and in test", at_least=0)
    server_share: float = option(
        0.1, "share of the training part given to the server, if the reserve leaves that many", at_least=0, at_most=0.9
    )

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        is_test = pool.test if pool.test is not None and 0 < pool.test.sum() < len(pool) else self._test_part(pool, rng)
        shares = rng.dirichlet(np.full(clients, self.beta), size=pool.classes)
        for part in (~is_test, is_test):
            self._warn_if_even(pool.y[part], clients)
        train, server = self._cut(np.flatnonzero(~is_test), pool, shares, self.server_share, rng)
        test, _ = self._cut(np.flatnonzero(is_test), pool, shares, 0.0, rng)
        refuse_empty(train, "lower partition.reserve" if self.reserve else "raise partition.beta")
        return Deal(train, test, server)

    def _warn_if_even(self, y: np.ndarray, clients: int) -> None:
        """Warn if the reserve takes most samples, as it may on a small fraction of a data set."""
        reserved = np.minimum(np.bincount(y), clients * self.reserve).sum()
        if clients > 1 and reserved > len(y) / 2:
            log.warning(
                "partition.reserve=%d deals %.0f %% of the %d samples of a part to all clients alike, whatever partition.beta is; "
                "for skewed clients lower it, such as partition.reserve=0, or take more samples",
                self.reserve,
                100 * reserved / len(y),
                len(y),
            )

    def _cut(
        self, rows: np.ndarray, pool: Pool, shares: np.ndarray, server_share: float, rng: np.random.Generator
    ) -> tuple[list[np.ndarray], np.ndarray]:
        clients = shares.shape[1]
        rows = rng.permutation(rows)
        rank = _rank_in_class(pool.y[rows])
        reserved = rank < clients * self.reserve
        first, taker = rows[reserved], rank[reserved] % clients
        rest = rows[~reserved]
        asked = len(rows) - int((1 - server_share) * len(rows))
        server, rest = rest[:asked], rest[asked:]  # the rows are shuffled
        sizes = np.bincount(pool.y[rest], minlength=pool.classes)
        counts = capped_counts(shares, sizes, len(rows) / clients, self.beta, rng)
        dealt = hand_out(rest, pool.y, counts, rng)
        return [np.sort(np.append(first[taker == j], part)) for j, part in enumerate(dealt)], np.sort(server)

    def _test_part(self, pool: Pool, rng: np.random.Generator) -> np.ndarray:
        order = rng.permutation(len(pool))
        is_test = np.empty(len(pool), bool)
        is_test[order] = (
            _rank_in_class(pool.y[order]) < (self.test_share * np.bincount(pool.y)).astype(int)[pool.y[order]]
        )
        return is_test


def _rank_in_class(y: np.ndarray) -> np.ndarray:
    """Return, for each sample, how many samples of its class come before it."""
    order = np.argsort(y, kind="stable")
    sizes = np.bincount(y)
    rank = np.empty(len(y), np.int64)
    rank[order] = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank
