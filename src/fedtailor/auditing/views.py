"""Who sees what of a client's reply."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.learning import Payload

SERVER = "server"
RELEASED = "all who know the other replies"


@dataclass(frozen=True)
class View:
    """What an observer sees of some entries of a reply: the reply itself, or its clipped change with noise.

    The latter is what is left in a noised mean for an observer who knows the replies of all others and subtracts them. It is the
    observer that differential privacy protects from.
    """

    who: str
    entries: tuple[str, ...]
    clip: float = math.inf
    noise: float = 0.0  # standard deviation, as a multiple of the clip

    def seen(self, known: Mapping[str, Tensor], reply: Payload, generator: torch.Generator) -> Payload:
        """Return the entries as they are seen; `known` is what the observer knows each was before training."""
        shown = {name: reply[name] for name in self.entries if name in reply}
        if math.isinf(self.clip):
            return shown
        changes = {name: value - known[name] for name, value in shown.items()}
        scale = min(1.0, self.clip / max(joint_norm(changes.values()), 1e-30))
        return {
            name: known[name] + scale * change + self.noise * self.clip * _normal(change, generator)
            for name, change in changes.items()
        }


def joint_norm(tensors: Collection[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
