"""Losses: functions of (net, x, y), so that they can use features as well as logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from fedtailor.nets.net import Net

Loss = Callable[[Net, Tensor, Tensor], Tensor]


def prototype_distance(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the squared distance of features to their class's prototype, mean over batch and dimensions; 0 for unknown classes."""
    return ((z - prototypes[y]).square().mean(dim=1) * known[y]).mean()


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

    def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        return criterion(net.classify(z), y) + weight * prototype_distance(z, y, prototypes, known)

    return loss
