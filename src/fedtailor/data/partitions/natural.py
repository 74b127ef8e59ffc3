"""Clients as the data set defines them: one per owner of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtailor.data.partition import Deal, Partition, hold_out, kept_split, partitions
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError
from fedtailor.registry import option


@partitions.register("natural", "owner")
@dataclass(frozen=True)
class Natural(Partition):
    """One client for each owner of samples (writer, patient, site); with fewer clients than owners, that many owners at random.

    With `official`, the data set's own test part is used; an owner without test samples is not scored. A data set that divides owners
    rather than their samples (HAR) is an exception: every owner's samples are split at random. clients = 0 stands for all owners.
    """

    by_class = False
    paper: ClassVar[str] = "Caldas et al., LEAF: A Benchmark for Federated Settings, 2018"

    official: bool = option(True, "use the data set's own test part where there is one")

    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal:
        if pool.owner is None:
            raise FedTailorError(
                "The 'natural' partition needs a data set that says who owns each sample, and this one does not. Among those that "
                "do: femnist, har, pfllib, table (with data.client), folder (with data.client_folders). Or choose another partition, "
                "such as dirichlet."
            )
        owners = np.unique(pool.owner)
        chosen = self._chosen(owners, clients, rng)
        order = np.argsort(pool.owner, kind="stable")
        starts, ends = (np.searchsorted(pool.owner[order], chosen, side) for side in ("left", "right"))
        parts = [order[start:end] for start, end in zip(starts, ends, strict=True)]
        names = tuple(pool.owners[owner] if pool.owners else str(owner) for owner in chosen)
        if not self.official:
            return hold_out(parts, self.test_share, rng, names, replace(pool, keep_split=False))
        if pool.test is not None and any(0 < pool.test[part].sum() < len(part) for part in parts):
            return kept_split(parts, pool.test, names)
        return hold_out(parts, self.test_share, rng, names, pool)

    def _chosen(self, owners: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        if clients < 0 or clients > len(owners):
            raise FedTailorError(
                f"clients = {clients}, but the data set has {len(owners)} owners of samples. Ask for 1 to {len(owners)} clients, or 0 for "
                "all of them."
            )
        if clients in (0, len(owners)):
            return owners
        return np.sort(rng.choice(owners, clients, replace=False))
