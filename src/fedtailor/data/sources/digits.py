"""Handwritten digits that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtailor.data.pool import Pool, Source, sources


@sources.register("digits")
@dataclass(frozen=True)
class Digits(Source):
    """1,797 handwritten digits of 8×8 pixels that come with scikit-learn (Alpaydin and Kaynak, 1998)."""

    def read(self, root: Path) -> Pool:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        return Pool(x, digits.target.astype(np.int64), classes=10, labels=tuple("0123456789"))
