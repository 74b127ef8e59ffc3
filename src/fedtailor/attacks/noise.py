from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.attacks.base import Attack, attacks
from fedtailor.registry import option


@attacks.register("noise", "gaussian")
@dataclass(frozen=True)
class Noise(Attack):
    """Send Gaussian noise in place of the change (Blanchard et al., 2017), as long as the change times the factor on average."""

    paper = "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
    year = 2017

    factor: float = option(10.0, "length of the noise as a multiple of the change's", above=0)

    def change(self, change: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.randn(change.shape, generator=generator, dtype=change.dtype).to(change.device)
        return self.factor * change.norm() / math.sqrt(max(1, change.numel())) * drawn
