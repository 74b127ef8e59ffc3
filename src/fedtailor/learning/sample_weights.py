"""Weights of single samples, which the labels of a batch carry with them.

A tensor made of labels (a slice, a part, a concatenation) carries none, so whoever cuts labels by hand uses `taken` or `cut`. The loss
refuses labels that have lost their weights, rather than train as if there were none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def weighted(y: Tensor, weights: Tensor | None) -> Tensor:
    """Return the labels with a weight each; `weights` = None leaves them as they are."""
    if weights is None:
        return y
    carrier: Any = y.view_as(y)  # another tensor of the same memory: those who share y do not get its weights
    carrier.sample_weights = weights
    return carrier


def weights_of(y: Tensor) -> Tensor | None:
    """Return the weights that labels carry, if any."""
    return getattr(y, "sample_weights", None)


def taken(y: Tensor, index: Tensor | slice) -> Tensor:
    """Return y[index] with its weights."""
    weights = weights_of(y)
    return weighted(y[index], None if weights is None else weights[index])


def cut(y: Tensor, pieces: int) -> list[Tensor]:
    """Return y.tensor_split(pieces), each piece with its weights."""
    weights = weights_of(y)
    of_each = [None] * pieces if weights is None else weights.tensor_split(pieces)
    return [weighted(part, own) for part, own in zip(y.tensor_split(pieces), of_each, strict=True)]


def counts(y: Tensor) -> bool:
    """Whether any sample has a weight above zero."""
    weights = weights_of(y)
    return weights is None or bool(weights.any())
