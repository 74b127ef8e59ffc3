"""The minimum of a convex function of one variable, and what is found by it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn import functional as F

FINEST = 4 * sys.float_info.epsilon  # the smallest relative tolerance that SciPy takes


def argmin_convex(derivative: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """Return where a convex function with this derivative is smallest on [low, high]: the lower end where it is constant.

    A root of the derivative is as exact as the derivative itself; comparing values would stop at √ε. An end where the derivative is
    NaN is returned as if the function were smallest there.
    """
    if not derivative(low) < 0:
        return low
    if not derivative(high) > 0:
        return high
    return brentq(derivative, low, high, xtol=1e-15 * (high - low), rtol=FINEST)


def best_share(own: Tensor, other: Tensor, y: Tensor, drawn: float = 0.0, temperature: float = 1.0) -> float:
    """The share α in [0, 1] that minimizes CE(α·own + (1−α)·other) + drawn·α²·KL(own ‖ other), of logits; convex in α."""
    p, q = (F.log_softmax(logits / temperature, dim=1) for logits in (own, other))
    curvature = 2 * drawn * F.kl_div(q, p, log_target=True, reduction="batchmean").item()
    towards, right = own - other, F.one_hot(y, own.shape[1])

    def derivative(alpha: float) -> float:
        error = torch.softmax(other + alpha * towards, dim=1) - right
        return (error * towards).sum(1).mean().item() + curvature * alpha

    return argmin_convex(derivative)
