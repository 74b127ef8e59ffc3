from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.registry import option
from fedtailor.robust.base import RobustMean, robust_means
from fedtailor.robust.changes import Changes


@robust_means.register("krum")
@dataclass(frozen=True)
class Krum(RobustMean):
    """Take the one change whose n − f − 2 nearest others are nearest to it, f being the number of hostile replies
    (Blanchard et al., 2017).

    Breakdown point: f of n replies, where n ≥ 2f + 3. With that many hostile replies, the chosen change is no farther from the others than
    these are from each other. It takes n² distances; one client's change alone is noisy where clients differ.
    """

    paper = "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
    year = 2017

    attackers: int | None = option(
        None, "f: how many replies of a round may be hostile (none: as many as the replies allow)", at_least=1
    )

    def __call__(self, changes: Changes) -> Tensor:
        return mean_of(changes, self.scores(changes).argsort(stable=True)[:1])

    def tolerates(self, replies: int) -> int:
        most = max(0, (replies - 3) // 2)
        return most if self.attackers is None else min(self.attackers, most)

    def check_replies(self, replies: int) -> None:
        if self.attackers is not None and self.tolerates(replies) < self.attackers:
            raise FedTailorError(
                f"robust.attackers = {self.attackers} needs at least {2 * self.attackers + 3} replies per round, but only {replies} take "
                "part. Lower it, or raise join or clients."
            )
        super().check_replies(replies)

    def scores(self, changes: Changes) -> Tensor:
        """Return the summed squared distances of each change to its n − f − 2 nearest others."""
        n = len(changes)
        near = max(1, n - self.tolerates(n) - 2)
        return squared_distances(changes).sort(1).values[:, 1 : near + 1].sum(1)  # the nearest is itself


def squared_distances(changes: Changes) -> Tensor:
    """Return ‖aᵢ − aⱼ‖² for all pairs of changes, in float64."""
    products = changes.sent.new_zeros(len(changes), len(changes), dtype=torch.float64)
    for _, rows in changes.blocks():
        wide = rows.double()
        products += wide @ wide.T
    own = products.diagonal()
    found = (own[:, None] + own - 2 * products).clamp(min=0)
    return found.fill_diagonal_(0)


def mean_of(changes: Changes, chosen: Tensor) -> Tensor:
    """Return the mean of some changes, given by number."""
    weights = torch.zeros(len(changes), dtype=torch.float64, device=chosen.device)
    weights[chosen] = 1 / len(chosen)
    return changes.combined(weights)
