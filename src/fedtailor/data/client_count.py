"""How many clients samples are dealt to when nobody names a number."""

from __future__ import annotations

import logging

from fedtailor.data.partition import Partition, check_task
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError
from fedtailor.randomness import numpy_stream

log = logging.getLogger("fedtailor")

USUAL = 20
FEWER = (15, 10, 5, 4, 3, 2, 1)  # tried in turn; round numbers, so that most seeds agree
FEWEST = 4  # samples of a client on average: enough for some to train on and one to test on


def default_clients(pool: Pool, partition: Partition, seed: int) -> int:
    """Return 20, or fewer if the partition cannot deal the samples to so many clients, and say so."""
    check_task(partition, pool)
    fewest = max(FEWEST, getattr(partition, "minimum", None) or 0)
    most = max(1, min(USUAL, len(pool) // fewest))
    tried = (most, *(n for n in FEWER if n < most))
    count = next((n for n in tried if _deals(pool, partition, n, seed)), USUAL)  # if none can be dealt to, 20 says why
    if count < USUAL:
        log.warning(
            "partition=%s cannot deal these %d samples well to the usual %d clients, so there are %d; clients=… or another partition "
            "changes that.",
            partition.name,
            len(pool),
            USUAL,
            count,
        )
    return count


def _deals(pool: Pool, partition: Partition, clients: int, seed: int) -> bool:
    try:
        partition.deal(pool, clients, numpy_stream(seed, "partition"))
    except FedTailorError:
        return False
    return True
