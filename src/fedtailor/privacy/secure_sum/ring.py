"""Numbers as integers modulo 2^64: they add without rounding in any order, and a uniform mask hides them completely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedtailor.errors import FedTailorError

Ring = np.ndarray  # of uint64, whose sums and differences are modulo 2^64

ROOM = 2**63  # sums lie strictly between −ROOM and ROOM
COARSEST = 16  # fraction bits; with fewer, rounding could be seen in a float32 model
FINEST = 62
HALF = Fraction(1, 2)


class OutOfRange(FedTailorError):
    """A client's own value does not fit the range that was declared."""


@dataclass(frozen=True)
class FixedPoint:
    """Multiples of 2^−fraction, with as many fraction bits as the sum over all clients has room for.

    Nothing can overflow: at most `clients` values of magnitude at most `bound`, each times a weight of at most `heaviest`, are added.
    Rounding is to the nearest multiple (ties to even), once at each client, so a weighted sum is off by at most clients·2^(−fraction−1).
    """

    bound: float
    heaviest: int
    clients: int

    def __post_init__(self) -> None:
        if self.fraction < COARSEST:
            raise FedTailorError(
                f"A secure sum over {self.clients:,} clients of values up to {self.bound:g} times {self.heaviest:,} would leave "
                f"{self.fraction} bits after the binary point, and {COARSEST} are needed. Lower privacy.bound or the number of clients."
            )

    @cached_property
    def fraction(self) -> int:
        """The largest f with clients · (heaviest · bound · 2^f + 1/2) < 2^63."""
        largest = self.heaviest * Fraction(self.bound)
        return max((f for f in range(FINEST + 1) if self.clients * (largest * 2**f + HALF) < ROOM), default=-1)

    def encode(self, values: Tensor, weight: int = 1) -> Ring:
        """Return weight·values in the ring; refuse what lies outside the declared range."""
        if not 0 < weight <= self.heaviest:
            raise OutOfRange(f"its weight is {weight:,}, and {self.heaviest:,} is the largest that a secure sum takes")
        wide = values.detach().cpu().double()
        largest = wide.abs().max().item() if wide.numel() else 0.0
        if not largest <= self.bound:
            size = f"of size {largest:g}" if math.isfinite(largest) else "that are not finite"
            raise OutOfRange(f"it has values {size}, and a secure sum takes them up to {self.bound:g} (privacy.bound)")
        return (wide * (weight * 2.0**self.fraction)).round().to(torch.int64).numpy().view(np.uint64)

    def decode(self, total: Ring, weight: float = 1) -> Tensor:
        """Return total/weight as float64 numbers."""
        return torch.from_numpy(total.view(np.int64).astype(np.float64) * 2.0**-self.fraction / weight)


def to_tensor(vector: Ring) -> Tensor:
    """Return ring elements as the int64 tensor that travels, bit by bit the same."""
    return torch.from_numpy(vector.view(np.int64))


def from_tensor(tensor: Tensor) -> Ring:
    return tensor.cpu().numpy().view(np.uint64)


def total(vectors: Sequence[Ring]) -> Ring:
    """Add vectors in the ring."""
    result = np.zeros_like(vectors[0])
    for vector in vectors:
        result += vector
    return result
