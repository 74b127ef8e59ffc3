"""Shards of samples sorted by label, a few for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import Deal, Partition, check_clients, cut, hand_out, hold_out, partitions
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError
from fedtailor.registry import option


@partitions.register("shards", "mcmahan")
@dataclass(frozen=True)
class Shards(Partition):
    """Samples sorted by label are cut in clients · shards equal shards (up to one sample), and each client gets `shards` of them at random.

    With `official`, the data set's training part is dealt so, and of its test part each client gets the same share of each class.
    """

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"

    shards: int = option(2, "shards a client gets", at_least=1)
    official: bool = option(False, "test on the data set's own test part rather than on a random share")

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        if not self.official:
            return hold_out(self._parts(np.arange(len(pool)), pool, clients, rng), self.test_share, rng, pool=pool)
        if pool.test is None or pool.test.all() or not pool.test.any():
            raise FedTailorError("The data set has no official test part. Leave out partition.official.")
        train = self._parts(np.flatnonzero(~pool.test), pool, clients, rng)
        held = np.stack([np.bincount(pool.y[rows], minlength=pool.classes) for rows in train], axis=1)
        held[held.sum(axis=1) == 0] = 1  # a class seen only in the test part is dealt evenly
        rows = np.flatnonzero(pool.test)
        sizes = np.bincount(pool.y[rows], minlength=pool.classes)
        counts = np.stack([cut(share, size) for share, size in zip(held, sizes, strict=True)])
        test = hand_out(rows, pool.y, counts, rng)
        return Deal([np.sort(part) for part in train], [np.sort(part) for part in test])

    def _parts(self, rows: np.ndarray, pool: Pool, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        pieces = clients * self.shards
        if len(rows) < pieces:
            raise FedTailorError(
                f"{clients} clients with {self.shards} shards each need {pieces} shards, but there are only {len(rows)} samples to "
                f"cut. Ask for at most {len(rows) // self.shards} clients, or lower partition.shards."
            )
        order = rng.permutation(rows)
        order = order[np.argsort(pool.y[order], kind="stable")]
        shards = np.array_split(order, pieces)
        return [np.concatenate([shards[i] for i in mine]) for mine in rng.permutation(pieces).reshape(clients, -1)]
