"""Scores of attacks with intervals: the area under the ROC curve, true positives at few false ones, means over victims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

Z = 1.959963984540054  # of a two-sided interval of 95 %
RESAMPLES = 400
EDGE = 1e-9


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def widened(self, other: Estimate) -> Estimate:
        return Estimate(self.value, min(self.low, other.low), max(self.high, other.high))


def area(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that a positive scores above a negative, ties counting half: the area under the ROC curve."""
    ranks = stats.rankdata(np.concatenate([positive, negative]))
    m, n = len(positive), len(negative)
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def auroc(positive: np.ndarray, negative: np.ndarray) -> Estimate:
    """The area under the ROC curve, with the score interval of Newcombe (2006, method 5), which also holds near 0 and 1."""
    m, n = len(positive), len(negative)
    if not m or not n:
        return Estimate(np.nan, 0.0, 1.0)
    found = area(positive, negative)

    def reach(true: float) -> float:
        more = ((m + n) / 2 - 1) * ((1 - true) / (2 - true) + true / (1 + true))
        return float(Z * np.sqrt(max(0.0, true * (1 - true) * (1 + more) / (m * n))))

    inside = min(max(found, EDGE), 1 - EDGE)  # at 0 and 1 the reach is zero, which is no solution
    low = optimize.brentq(lambda true: found - true - reach(true), 0, inside) if found > 0 else 0.0
    high = optimize.brentq(lambda true: true - found - reach(true), inside, 1) if found < 1 else 1.0
    return Estimate(found, float(low), float(high))


def true_positives(positive: np.ndarray, negative: np.ndarray, false: float = 0.01) -> Estimate:
    """The share of positives above all but a share `false` of the negatives, with the interval of Clopper and Pearson.

    Of fewer than 1/`false` negatives, none may be above.
    """
    order = np.sort(negative)
    threshold = order[len(order) - 1 - int(false * len(order))]
    return share(int((positive > threshold).sum()), len(positive))


def share(count: int, total: int) -> Estimate:
    """A share with the interval of Clopper and Pearson."""
    low = stats.beta.ppf(0.025, count, total - count + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, total - count) if count < total else 1.0
    return Estimate(count / total, float(low), float(high))


def resampled(
    groups: Sequence[np.ndarray], statistic: Callable[[np.ndarray], float], rng: np.random.Generator
) -> Estimate:
    """A statistic of all rows, with the interval of a bootstrap that draws whole groups (clients), whose rows are alike."""
    values = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(len(groups), size=len(groups))
        values.append(statistic(np.concatenate([groups[i] for i in drawn])))
    low, high = np.nanquantile(values, [0.025, 0.975]) if np.isfinite(values).any() else (np.nan, np.nan)
    return Estimate(statistic(np.concatenate(groups)), float(low), float(high))
