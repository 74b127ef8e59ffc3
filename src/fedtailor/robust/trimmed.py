from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedtailor.registry import among, option
from fedtailor.robust.base import RobustMean, robust_means
from fedtailor.robust.changes import Changes


@robust_means.register("trimmed", "trimmed-mean")
@dataclass(frozen=True)
class Trimmed(RobustMean):
    """Leave out the largest and the smallest values of each coordinate, a share of the replies each, and take the mean of the rest
    (Yin et al., 2018).

    Breakdown point: the share (rounded up to whole replies, and always less than half of them). With that many hostile replies, each
    coordinate lies between two values of the others.
    """

    paper = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
    year = 2018

    share: float = option(
        0.2,
        "share of the replies left out at either end: the largest share of hostile replies",
        above=0,
        at_most=0.5,
        search=among(0.1, 0.2, 0.3, 0.4),
    )

    def __call__(self, changes: Changes) -> Tensor:
        n, k = len(changes), self.tolerates(len(changes))
        return changes.by_block((columns, rows[k : n - k].mean(0)) for columns, rows in changes.ordered())

    def tolerates(self, replies: int) -> int:
        asked = math.ceil(self.share * replies - 1e-9)  # 0.07 · 100 is a little more than 7
        return min(asked, (replies - 1) // 2)
