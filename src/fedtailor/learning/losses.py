"""Losses: functions of (net, x, y), so that they can use features as well as logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedtailor.nets.net import Net

Loss = Callable[[Net, Tensor, Tensor], Tensor]


def prototype_distance(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the squared distance of features to their class's prototype, mean over batch and dimensions; 0 for unknown classes."""
    return ((z - prototypes[y]).square().mean(dim=1) * known[y]).mean()


@dataclass(frozen=True, eq=False)
class NearPrototypes:
    """A criterion plus weight × the distance of features to their class's prototype: a loss that clients can compute side by side."""

    criterion: Callable[[Tensor, Tensor], Tensor]
    prototypes: Tensor
    known: Tensor
    weight: float

    def __call__(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        return self.criterion(net.classify(z), y) + self.weight * prototype_distance(z, y, self.prototypes, self.known)


def near_prototypes(
    criterion: Callable[[Tensor, Tensor], Tensor],
    payload: Mapping[str, Tensor],
    strength: float,
    *,
    reduction: Literal["mean", "sum"] = "mean",
) -> Loss | None:
    """Return the task's loss (`client.loss`) plus strength × the distance of features to the payload's `prototypes`, where `known`.

    Return None, which trains on the task's loss alone, if the strength is 0 or there are no prototypes yet. With `reduction="sum"`,
    the distance is a sum over dimensions.
    """
    if strength == 0 or "prototypes" not in payload:
        return None
    prototypes, known = payload["prototypes"], payload["known"]
    weight = strength * (prototypes.shape[1] if reduction == "sum" else 1)
    return NearPrototypes(criterion, prototypes, known, weight)
