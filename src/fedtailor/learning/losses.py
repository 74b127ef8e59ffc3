"""Losses: functions of (net, x, y), so that a method can look at features as well as logits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from fedtailor.nets.net import Net

Loss = Callable[[Net, Tensor, Tensor], Tensor]


def cross_entropy(net: Net, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def cross_entropy_of_features(net: Net, z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.classify(z), y)


def prototype_distance(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance, over batch and dimensions, of features to their class's prototype; classes without one count as zero."""
    return ((z - prototypes[y]).square().mean(dim=1) * known[y]).mean()


def near_prototypes(prototypes: Tensor, known: Tensor, strength: float) -> Loss:
    """Cross-entropy plus strength × the distance of the features to their class's prototype."""

    def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        return F.cross_entropy(net.classify(z), y) + strength * prototype_distance(z, y, prototypes, known)

    return loss
