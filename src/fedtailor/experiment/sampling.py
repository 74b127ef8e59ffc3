"""Client sampling: who takes part in a round, and who drops out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtailor.learning.protocol import Protocol
from fedtailor.randomness import numpy_stream


@dataclass(frozen=True)
class Selection:
    """The clients picked for a round, and those of them that reply."""

    picked: list[int]
    replying: list[int]


def select(protocol: Protocol, candidates: list[int], round: int) -> Selection:
    """Pick a share of the candidates (drawn from a range if the protocol gives one); each picked client may drop out before it replies."""
    rng = numpy_stream(protocol.seed, "sampling", round)
    low, high = (math.floor(share * len(candidates) + 1e-9) for share in protocol.join_range)
    count = max(1, int(rng.integers(low, high + 1)))
    picked = sorted(int(i) for i in rng.choice(candidates, size=count, replace=False))
    stays = rng.random(len(picked)) >= protocol.dropout
    return Selection(picked, [i for i, here in zip(picked, stays, strict=True) if here])
