from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.attacks.base import Attack, attacks


@attacks.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """Send the opposite of the change, times the factor (Li et al., 2019)."""

    paper = "Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous Datasets"
    year = 2019

    def change(self, change: Tensor, generator: torch.Generator) -> Tensor:
        return -self.factor * change
