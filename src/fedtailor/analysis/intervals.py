"""95 % intervals: of means over seeds or clients, and of shares of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NORMAL = 1.959964  # 97.5 % quantile


@dataclass(frozen=True)
class Interval:
    """Values with the ends of their 95 % intervals, NaN where there is none."""

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __sub__(self, other: Interval) -> Interval:
        """Return the difference; its interval is that of two independent estimates (Newcombe)."""
        gap = self.values - other.values
        below = np.hypot(self.values - self.low, other.high - other.values)
        above = np.hypot(self.high - self.values, other.values - other.low)
        return Interval(gap, gap - below, gap + above)


def student(values: np.ndarray) -> Interval:
    """Return the mean over the first axis with Student's interval; NaN ends if there is but one value."""
    from scipy import stats  # slow to import

    mean, count = values.mean(axis=0), len(values)
    std = values.std(axis=0, ddof=1) if count > 1 else np.full_like(mean, np.nan)
    reach = stats.t.ppf(0.975, max(1, count - 1)) * std / np.sqrt(count)
    return Interval(mean, mean - reach, mean + reach)


def wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's interval of shares of so many samples; unlike the bootstrap's, it has a width even at 0 and 1."""
    share, count = np.clip(share, 0, 1), np.where(count > 0, count, np.nan)
    middle = (share + NORMAL**2 / (2 * count)) / (1 + NORMAL**2 / count)
    reach = NORMAL / (1 + NORMAL**2 / count) * np.sqrt(share * (1 - share) / count + (NORMAL / (2 * count)) ** 2)
    return np.clip(middle - reach, 0, share), np.clip(middle + reach, share, 1)  # at 0 and 1, rounding crosses the ends
