"""Client sampling: who takes part in a round, and who drops out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.learning.protocol import Protocol
from fedtailor.randomness import numpy_stream


@dataclass(frozen=True)
class Selection:
    """The clients picked for a round, and those of them that reply."""

    picked: list[int]
    replying: list[int]


def counts(protocol: Protocol, candidates: Sequence[int]) -> tuple[int, int]:
    """Return the fewest and the most clients that may be picked in a round (at least one is)."""
    low, high = (math.floor(share * len(candidates) + 1e-9) for share in protocol.join_range)
    return low, high


def select(
    protocol: Protocol, candidates: list[int], round: int, *, poisson: bool = False, seed: int | None = None
) -> Selection:
    """Pick a share of the candidates (drawn from a range if the protocol gives one); each picked client may drop out before it replies.

    With `poisson`, each candidate is picked independently, so that there may be none. `seed` takes the place of the protocol's.
    """
    rng = numpy_stream(protocol.seed if seed is None else seed, "sampling", round)
    if poisson:
        here = rng.random(len(candidates)) < protocol.join_range[1]
        return _staying([i for i, picked in zip(candidates, here, strict=True) if picked], protocol, rng)
    low, high = counts(protocol, candidates)
    count = max(1, int(rng.integers(low, high + 1)))
    picked = sorted(int(i) for i in rng.choice(candidates, size=count, replace=False))
    return _staying(picked, protocol, rng)


def _staying(picked: list[int], protocol: Protocol, rng: np.random.Generator) -> Selection:
    stays = rng.random(len(picked)) >= protocol.dropout
    return Selection(picked, [i for i, here in zip(picked, stays, strict=True) if here])
