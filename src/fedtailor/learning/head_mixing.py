"""The best mixture of two heads: the weight α of the own head that minimizes the loss on given features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.search import argmin_convex
from fedtailor.nets.net import Net

ENOUGH = 2048  # samples to search α on


@torch.no_grad()
def best_head_weight(
    net: Net,
    own: Tensor,
    other: Tensor,
    z: Tensor,
    y: Tensor,
    kl_weight: float,
    temperature: float,
    generator: torch.Generator,
) -> float:
    """Return the weight α of the own head in α·own + (1−α)·other that minimizes the objective of `best_logit_weight` on (z, y).

    Of more than `ENOUGH` samples, a random subset is used. The head of `net` is overwritten.
    """
    if len(y) > ENOUGH:
        chosen = torch.randperm(len(y), generator=generator)[:ENOUGH].to(y.device)
        z, y = z[chosen], y[chosen]
    own_logits, other_logits = (_logits(net, head, z) for head in (own, other))
    return best_logit_weight(own_logits, other_logits, y.cpu(), kl_weight, temperature)


def _logits(net: Net, head: Tensor, z: Tensor) -> Tensor:
    net.head.vector = head
    return net.classify(z).cpu().double()  # not every device has float64


def best_logit_weight(own: Tensor, other: Tensor, y: Tensor, kl_weight: float = 0.0, temperature: float = 1.0) -> float:
    """Return the α in [0, 1] that minimizes CE(α·own + (1−α)·other, y) + kl_weight·α²·KL(own ‖ other); convex in α."""
    p, q = (F.log_softmax(logits / temperature, dim=1) for logits in (own, other))
    curvature = 2 * kl_weight * F.kl_div(q, p, log_target=True, reduction="batchmean").item()
    difference, target = own - other, F.one_hot(y, own.shape[1])

    def derivative(alpha: float) -> float:
        error = torch.softmax(other + alpha * difference, dim=1) - target
        return (error * difference).sum(1).mean().item() + curvature * alpha

    return argmin_convex(derivative)
