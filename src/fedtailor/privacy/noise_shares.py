"""Differential privacy inside a secure sum: each client clips its own change and adds a share of the noise.

So no sum without noise exists anywhere. One that can be unmasked has at least t clients, and each of them knows its own share. Therefore
any t − 1 shares make the noise whole: dropouts cannot weaken it, and neither the server nor any one client faces less. If k clients put
their shares together, with each other or with the server, the noise that is left is at least √((t − k)/(t − 1)) of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.accounting import Sampling
from fedtailor.privacy.client_dp import Amount, change_of, clipped_norm
from fedtailor.privacy.rules import DPOptions
from fedtailor.randomness import torch_stream

LARGEST = (
    9.0  # of a standard normal number from 53 random bits: 8.6 by Box–Muller, 8.3 by the inverse of its distribution
)


class ShareDraws(Protocol):
    """Where a client's shares come from, and what it has to remember of them."""

    def normal(self, client: int, round: int, change: Tensor, deviation: float, most: int) -> Tensor:
        """Return standard normal numbers for a change. Of a run's sums, `most` may have noise of their own."""
        ...

    def reveal(self, client: int, survivors: Sequence[int]) -> None:
        """Take note of the clients whose sum the last share is in; refuse to reveal it with other ones than before."""
        ...


@dataclass(frozen=True)
class NamedShares:
    """The shares of a simulation, from named streams: whoever knows the seed can take them off."""

    seed: int

    def normal(self, client: int, round: int, change: Tensor, deviation: float, most: int) -> Tensor:
        generator = torch_stream(self.seed, "privacy", "share", round, client)
        return torch.randn(change.shape, generator=generator, dtype=torch.float64)

    def reveal(self, client: int, survivors: Sequence[int]) -> None:
        """Reveal it: a repeated round of a simulation has the same clients."""


@dataclass(frozen=True)
class NoiseShares:
    """What each client of a run does to its change before that is masked."""

    options: DPOptions
    rounds: int
    draws: ShareDraws

    @cached_property
    def amount(self) -> Amount:
        """The noise of a whole sum, which every client works out for itself. It takes a moment."""
        return Amount.of(self.options, Sampling("fixed", 1.0, 1), self.rounds)

    def deviation(self, needed: int) -> float:
        """Return the standard deviation of a share, where `needed` clients can unmask the sum."""
        return self.amount.accountant.noise * self.options.clip / math.sqrt(needed - 1)

    def bound(self, needed: int) -> float:
        """Return what no number of a clipped change with its share of the noise exceeds."""
        return self.options.clip + LARGEST * self.deviation(needed)

    def noised(self, client: int, round: int, up: Payload, sent: Payload, names: Sequence[str], needed: int) -> Payload:
        """Return the clipped change of the entries with a share of the noise; a change that is not finite counts as zero."""
        change = change_of({name: up[name].cpu().double() for name in names}, _cpu(sent, names), names)
        _, factor = clipped_norm(change, self.options.clip)
        flat = torch.cat([(t * factor if factor else torch.zeros_like(t)).reshape(-1) for t in change.values()])
        deviation = self.deviation(needed)
        flat = flat + deviation * self.draws.normal(client, round, flat, deviation, self.amount.allowed)
        parts = flat.split([t.numel() for t in change.values()])
        return {name: part.view(t.shape) for part, (name, t) in zip(parts, change.items(), strict=True)}


def _cpu(sent: Payload, names: Sequence[str]) -> Payload:
    return {name: sent[name].cpu().double() for name in names if name in sent}
