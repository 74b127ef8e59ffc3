"""Mix two vectors entry by entry, with weights learned by gradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import Tensor

from fedtailor.learning.mixing import mixed
from fedtailor.nets.net import Part


def learned_weights(
    part: Part,
    own: Tensor,
    other: Tensor,
    weights: Tensor,
    batches: Iterable[tuple[Tensor, Tensor]],
    lr: float,
    *,
    logits: Callable[[Tensor], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    clamp: bool = True,
) -> tuple[Tensor, float]:
    """Return the weights W after one gradient step per batch on the loss at own + (other − own)⊙W, and the loss of the last batch.

    `own` and `other` are weights of `part`, which is left at the mixture.
    """
    difference = other - own
    part.weights = mixed(other, own, weights)
    last = float("nan")
    for x, y in batches:
        value = loss(logits(x), y)
        last = value.item()
        if not math.isfinite(last):
            continue
        weights = weights - lr * part.gradient(value) * difference  # ∂L/∂W = ∂L/∂ŵ ⊙ (other − own)
        if clamp:
            weights = weights.clamp(0, 1)
        part.weights = mixed(other, own, weights)
    return weights, last
