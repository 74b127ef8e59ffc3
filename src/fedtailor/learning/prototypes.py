"""Class means of features, at one client and over clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class (zeros where the class is absent) and how many samples each class has."""
    counts = torch.bincount(y, minlength=classes).to(z.dtype)
    sums = z.new_zeros(classes, z.shape[1]).index_add_(0, y, z)
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def mean_of_means(
    means: Sequence[Tensor], counts: Sequence[Tensor], *, weighted: bool = False
) -> tuple[Tensor, Tensor]:
    """Prototypes over clients, from those that have the class (by their samples if `weighted`), and a mask of the known classes."""
    shares = torch.stack([c if weighted else (c > 0).to(m.dtype) for m, c in zip(means, counts, strict=True)])
    total = shares.sum(0)
    prototypes = torch.einsum("kc,kcd->cd", shares, torch.stack(list(means))) / total.clamp(min=1).unsqueeze(1)
    return prototypes, total > 0
