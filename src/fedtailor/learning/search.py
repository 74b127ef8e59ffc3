"""The minimum of a convex function of one variable."""

from __future__ import annotations

import sys
from collections.abc import Callable

FINEST = 4 * sys.float_info.epsilon  # the smallest relative tolerance that SciPy accepts


def argmin_convex(derivative: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """Return where a convex function with this derivative is smallest on [low, high]; the lower end if it is constant.

    A root of the derivative is as exact as the derivative itself; comparing values would stop at √ε. An end where the derivative is
    NaN is returned as if the function were smallest there.
    """
    from scipy.optimize import brentq  # slow to import

    if not derivative(low) < 0:
        return low
    if not derivative(high) > 0:
        return high
    return brentq(derivative, low, high, xtol=1e-15 * (high - low), rtol=FINEST)
