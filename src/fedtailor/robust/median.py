from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedtailor.robust.base import RobustMean, robust_means
from fedtailor.robust.changes import Changes


@robust_means.register("median", "coordinate-wise-median")
@dataclass(frozen=True)
class Median(RobustMean):
    """Take the median of each coordinate (Yin et al., 2018); of an even number, the mean of the middle two.

    Breakdown point 1/2: with fewer hostile replies, each coordinate lies between two values of the others.
    """

    paper = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
    year = 2018

    def __call__(self, changes: Changes) -> Tensor:
        n = len(changes)
        middle = slice((n - 1) // 2, n // 2 + 1)
        return changes.by_block((columns, rows[middle].mean(0)) for columns, rows in changes.ordered())

    def tolerates(self, replies: int) -> int:
        return (replies - 1) // 2
