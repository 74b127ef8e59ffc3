"""What travels between clients and server, and how vectors are averaged and mixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Payload = dict[str, Tensor]
State = dict[str, Tensor]
Weights = Literal["samples", "clients"] | Sequence[float]  # of the replies in a mean

BLOCK = 4096  # columns: of a thousand models of floats, 16 MB


@dataclass(frozen=True)
class Reply:
    """What one client sent up: `reply["body"]`, and how many training samples stand behind it."""

    client: int
    samples: int
    payload: Payload

    def __getitem__(self, name: str) -> Tensor:
        return self.payload[name]


def weighted_mean(replies: Sequence[Reply], name: str, by: Weights = "samples") -> Tensor:
    """Mean of one entry over replies: by samples, by clients (all alike), or by the weights given."""
    if by == "samples":
        weights = [float(r.samples) for r in replies]
    else:
        weights = [1.0] * len(replies) if by == "clients" else [float(weight) for weight in by]
    total = sum(weights)
    mean = torch.zeros_like(replies[0][name])
    for reply, weight in zip(replies, weights, strict=True):
        mean.add_(reply[name], alpha=weight / total)
    return mean


def mixed(own: Tensor, other: Tensor, share: float | Tensor) -> Tensor:
    """share·own + (1−share)·other, with one share or one for each entry."""
    return torch.lerp(other, own, share)


def mix_into_rows(rows: Tensor, chosen: Tensor, kept: Tensor, taken: Tensor, vectors: Sequence[Tensor]) -> None:
    """Set rows[chosen] to kept·rows[chosen] + taken @ vectors, a block of columns at a time: models of all clients are large."""
    for columns in column_blocks(rows.shape[1]):
        block = torch.stack([vector[columns] for vector in vectors])
        rows[chosen, columns] = torch.addmm(kept * rows[chosen, columns], taken, block)


def column_blocks(width: int) -> Iterator[slice]:
    """Stretches of so many columns, to work on the models of all clients without another copy of them."""
    return (slice(start, min(start + BLOCK, width)) for start in range(0, width, BLOCK))
