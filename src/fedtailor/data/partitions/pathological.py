"""Clients that each hold only a few classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import Deal, Partition, check_clients, class_sizes, hand_out, hold_out, partitions
from fedtailor.data.partitions.dirichlet import least
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError
from fedtailor.registry import option


@partitions.register("pathological", "pat", "pfllib-pathological")
@dataclass(frozen=True)
class Pathological(Partition):
    """Class after class goes to the first clients with room for another class, so neighbours in id share their classes.

    A class goes to (clients · classes_per_client) / classes of them; where that is no whole number, to one more or less, such that no
    class is left over.
    """

    paper: ClassVar[str] = (
        "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized FL, AAAI 2023 (as in PFLlib)"
    )

    classes_per_client: int = option(2, "classes a client holds", at_least=1)
    balanced: bool = option(False, "deal each class in equal parts rather than in random ones")

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        check_clients(pool, clients)
        sizes = class_sizes(pool)
        self._refuse_impossible(int(np.count_nonzero(sizes)), clients)
        floor = least(len(pool), clients, self.test_share) / pool.classes
        counts = np.zeros((pool.classes, clients), np.int64)
        room = np.full(clients, self.classes_per_client)
        present = np.flatnonzero(sizes)
        for done, k in enumerate(present):
            wanted = min(-(-room.sum() // (len(present) - done)), sizes[k])
            takers = np.flatnonzero(room)[:wanted]
            counts[k, takers] = self._pieces(sizes[k], len(takers), floor, rng)
            room[takers] -= 1
        return hold_out(hand_out(np.arange(len(pool)), pool.y, counts, rng), self.test_share, rng, pool=pool)

    def _pieces(self, size: int, takers: int, floor: float, rng: np.random.Generator) -> np.ndarray:
        """Cut equal pieces, or random ones from a tenth of an equal piece up to all of it; the last client gets the rest."""
        equal = size / takers
        if self.balanced:
            return size // takers + (np.arange(takers) < size % takers)
        high = int(equal)
        low = max(1, int(min(max(equal / 10, floor), high - 1)))
        pieces = rng.integers(low, max(high, low + 1), takers - 1)
        return np.append(pieces, size - pieces.sum())

    def _refuse_impossible(self, classes: int, clients: int) -> None:
        if self.classes_per_client > classes:
            raise FedTailorError(
                f"partition.classes_per_client = {self.classes_per_client}, but the data set has only {classes} classes."
            )
        if clients * self.classes_per_client < classes:
            raise FedTailorError(
                f"{clients} clients with {self.classes_per_client} classes each cannot hold {classes} classes. Set "
                f"partition.classes_per_client to at least {-(-classes // clients)}, or ask for more clients."
            )
