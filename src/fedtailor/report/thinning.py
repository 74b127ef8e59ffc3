"""Long curves with few points that look the same."""

from __future__ import annotations

import numpy as np

POINTS = 240  # more than a screen tells apart in a curve with noise


def thinned(series: np.ndarray, most: int = POINTS) -> np.ndarray:
    """Which positions of several curves (curves × positions) to keep: the ends, and each curve's lowest and highest of every stretch."""
    curves, length = series.shape
    if length <= most:
        return np.arange(length)
    stretches = np.array_split(np.arange(length), max(1, (most - 2) // (2 * curves)))
    kept = {0, length - 1}
    for stretch in stretches:
        part = series[:, stretch]
        kept.update(stretch[np.concatenate([part.argmin(axis=1), part.argmax(axis=1)])].tolist())
    return np.array(sorted(kept))
