"""The least value of a convex function of one number."""

from __future__ import annotations

from collections.abc import Callable

HALVINGS = 50  # finer than a double can tell apart on [0, 1]


def argmin_convex(derivative: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """Where a convex function with this derivative is least on [low, high]; the lower end if it is level there.

    Halving the stretch in which the derivative changes sign is as exact as the derivative itself, where comparing values stops at √ε.
    """
    if derivative(low) >= 0:
        return low
    if derivative(high) <= 0:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if derivative(middle) > 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2
