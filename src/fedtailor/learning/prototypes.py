"""Class means of features, of one client and over clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class (zeros if the class is absent) and the number of its samples."""
    counts = torch.bincount(y, minlength=classes).to(z.dtype)
    sums = z.new_zeros(classes, z.shape[1]).index_add_(0, y, z)
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def mean_of_means(
    means: Sequence[Tensor], counts: Sequence[Tensor], *, weighted: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the mean of each class over the clients that have it (by samples if `weighted`), and a mask of these classes."""
    weights = torch.stack([c if weighted else (c > 0).to(m.dtype) for m, c in zip(means, counts, strict=True)])
    total = weights.sum(0)
    prototypes = torch.einsum("kc,kcd->cd", weights, torch.stack(list(means))) / total.clamp(min=1).unsqueeze(1)
    return prototypes, total > 0
