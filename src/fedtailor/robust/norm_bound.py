from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedtailor.registry import log_between, option
from fedtailor.robust.base import RobustMean, robust_means
from fedtailor.robust.changes import Changes


@robust_means.register("norm-bound", "norm", "clip")
@dataclass(frozen=True)
class NormBound(RobustMean):
    """Shorten each change to at most the median length of the round, then take the mean (Sun et al., 2019).

    Breakdown point 1/2: with fewer hostile replies, the median length lies among those of the others, and each reply moves the mean by at
    most one n-th of it. It bounds how far hostile replies move the mean but not where to, so a large share of them still has its way
    slowly.
    """

    paper = "Sun et al., Can You Really Backdoor Federated Learning?"
    year = 2019

    bound: float = option(
        1.0, "longest change, as a multiple of the median length", above=0, search=log_between(0.3, 3)
    )

    def __call__(self, changes: Changes) -> Tensor:
        norms = changes.norms
        longest = self.bound * norms.quantile(0.5)
        scales = (longest / norms.clamp(min=1e-300)).clamp(max=1)
        return changes.combined(scales / len(changes))

    def tolerates(self, replies: int) -> int:
        return (replies - 1) // 2
