"""Running statistics of normalisation layers in a mean that is not a plain one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.nets.net import Part

LEAST = 0.1  # of what a variance was before


def keep_variances(part: Part | None, mean: Tensor, before: Tensor | None) -> None:
    """Keep running variances in a mean at a tenth of what they were, at least: noise may have made them negative."""
    if part is None or before is None or len(part) != len(mean) or len(part.trainable(mean)) == len(mean):
        return
    old = part.named(before)
    for entry, values in part.named(mean).items():
        if entry.endswith("running_var"):
            values.copy_(torch.maximum(values, LEAST * old[entry]))
