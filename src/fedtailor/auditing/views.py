"""Who sees what of a client's reply."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor.learning import Payload

SERVER = "server"
OTHERS = "others"


@dataclass(frozen=True)
class Exchange:
    """What the server sent a client, what an observer knows of each entry from before, and the client's reply as it is seen."""

    client: int
    sent: Payload
    known: Payload
    reply: Payload


@dataclass(frozen=True)
class View:
    """What an observer sees of some entries of a reply: the reply itself, or its clipped change with noise.

    The latter is what is left in a noised mean for others who know the replies of all clients but one and subtract them. They are the
    observers that differential privacy protects from.
    """

    who: str
    entries: tuple[str, ...]
    clip: float = math.inf
    noise: float = 0.0  # standard deviation, as a multiple of the clip

    def seen(self, exchange: Exchange, generator: torch.Generator) -> Exchange:
        """Return what is seen of an exchange. Where there is a clip, an entry that was not sent down is its own change."""
        shown = {name: exchange.reply[name] for name in self.entries if name in exchange.reply}
        if math.isinf(self.clip):
            return replace(exchange, reply=shown)
        base = {name: exchange.sent.get(name, torch.zeros_like(value)) for name, value in shown.items()}
        changes = {name: value - base[name] for name, value in shown.items()}
        scale = min(1.0, self.clip / max(joint_norm(changes.values()), 1e-30))
        noised = {
            name: base[name] + scale * change + self.noise * self.clip * _normal(change, generator)
            for name, change in changes.items()
        }
        return replace(exchange, known=base, reply=noised)


def joint_norm(tensors: Collection[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
