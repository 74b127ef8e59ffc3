"""Losses: functions of (net, x, y), so that a method can look at features as well as logits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedtailor.nets.net import Net

Loss = Callable[[Net, Tensor, Tensor], Tensor]


def prototype_distance(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance, over batch and dimensions, of features to their class's prototype; classes without one count as zero."""
    return ((z - prototypes[y]).square().mean(dim=1) * known[y]).mean()


def near_prototypes(
    criterion: Callable[[Tensor, Tensor], Tensor], prototypes: Tensor, known: Tensor, strength: float
) -> Loss:
    """The task's loss (`client.loss`) plus strength × the distance of the features to their class's prototype."""

    def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        return criterion(net.classify(z), y) + strength * prototype_distance(z, y, prototypes, known)

    return loss
