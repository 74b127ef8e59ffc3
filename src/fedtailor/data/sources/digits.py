"""Handwritten digits that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fedtailor.data.pool import Pool, Source, sources


@sources.register("digits")
@dataclass(frozen=True)
class Digits(Source):
    """1,797 handwritten digits of 8×8 pixels that come with scikit-learn (Alpaydin and Kaynak, 1998)."""

    def read(self, root: Path) -> Pool:
        x, y = _images_and_labels()
        return Pool(x.copy(), y.copy(), classes=10, labels=tuple("0123456789"))


@cache  # scikit-learn parses a text file at each call
def _images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    return x, digits.target.astype(np.int64)
