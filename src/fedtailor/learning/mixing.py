"""Payloads and replies that travel between clients and server, and the averaging and mixing of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Payload = dict[str, Tensor]
State = dict[str, Tensor]
Weights = Literal["samples", "clients"] | Sequence[float]  # of the replies in a weighted mean

BLOCK = 4096  # columns; for a thousand models in float32, 16 MB


@dataclass(frozen=True)
class Reply:
    """The payload that one client sent, `reply["body"]`, and the number of samples it trained on."""

    client: int
    samples: int
    payload: Payload

    def __getitem__(self, name: str) -> Tensor:
        return self.payload[name]


def weighted_mean(replies: Sequence[Reply], name: str, by: Weights = "samples") -> Tensor:
    """Return the mean of one entry over replies, weighted by samples, by clients (all equal), or by given weights."""
    weights = reply_weights(replies, by)
    total = sum(weights)
    mean = torch.zeros_like(replies[0][name])
    for reply, weight in zip(replies, weights, strict=True):
        mean.add_(reply[name], alpha=weight / total)
    return mean


def reply_weights(replies: Sequence[Reply], by: Weights) -> list[float]:
    """Return the weight of each reply in a mean, before they are divided by their sum."""
    if by == "samples":
        return [float(r.samples) for r in replies]
    return [1.0] * len(replies) if by == "clients" else [float(weight) for weight in by]


def mixed(own: Tensor, other: Tensor, weight: float | Tensor) -> Tensor:
    """Return weight·own + (1−weight)·other, with one weight for all entries or one per entry."""
    return torch.lerp(other, own, weight)


def mix_into_rows(rows: Tensor, chosen: Tensor, kept: Tensor, taken: Tensor, vectors: Sequence[Tensor]) -> None:
    """Set rows[chosen] to kept·rows[chosen] + taken @ vectors, one block of columns at a time to save memory."""
    kept, taken = kept.to(rows), taken.to(rows)
    for columns in column_blocks(rows.shape[1]):
        block = torch.stack([vector[columns] for vector in vectors])
        rows[chosen, columns] = torch.addmm(kept * rows[chosen, columns], taken, block)


def column_blocks(width: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK` columns, to process the models of all clients without copying them all."""
    return (slice(start, min(start + BLOCK, width)) for start in range(0, width, BLOCK))
