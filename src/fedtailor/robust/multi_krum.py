from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedtailor.robust.base import robust_means
from fedtailor.robust.changes import Changes
from fedtailor.robust.krum import Krum, mean_of


@robust_means.register("multi-krum", "multikrum")
@dataclass(frozen=True)
class MultiKrum(Krum):
    """Take the mean of the n − f changes that Krum scores best (Blanchard et al., 2017).

    Breakdown point as Krum's: f of n replies, where n ≥ 2f + 3.
    """

    def __call__(self, changes: Changes) -> Tensor:
        n = len(changes)
        return mean_of(changes, self.scores(changes).argsort(stable=True)[: n - self.tolerates(n)])
