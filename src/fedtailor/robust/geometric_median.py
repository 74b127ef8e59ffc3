from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.robust.base import RobustMean, robust_means
from fedtailor.robust.changes import Changes
from fedtailor.robust.median import Median

STEPS = 100
PRECISION = 1e-5  # as a share of the median distance: of the centre, and of a distance that counts as none


@robust_means.register("geometric-median", "rfa")
@dataclass(frozen=True)
class GeometricMedian(RobustMean):
    """Take the point whose summed distance to all changes is smallest (RFA; Pillutla et al., 2022), by Weiszfeld's iteration.

    Breakdown point 1/2: with fewer hostile replies, it stays within a fixed multiple of the others' distances, however far off the hostile
    ones are. Unlike the coordinate-wise median, it does not depend on the axes.
    """

    paper = "Pillutla et al., Robust Aggregation for Federated Learning"
    year = 2022

    def __call__(self, changes: Changes) -> Tensor:
        centre = Median()(changes)  # bounded from the first step on; the mean is as far off as the hostile replies are
        for _ in range(STEPS):
            distances = changes.distances(centre)
            least = PRECISION * distances.quantile(0.5)
            if least == 0:
                break  # most replies are where the centre is
            weights = 1 / torch.maximum(distances, least)
            before, centre = centre, changes.combined(weights / weights.sum())
            if (centre - before).norm() <= least:
                break
        return centre

    def tolerates(self, replies: int) -> int:
        return (replies - 1) // 2
