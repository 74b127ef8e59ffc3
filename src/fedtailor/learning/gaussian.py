"""A Gaussian for each class in the space of features: estimated from class means of clients, drawn from by clients.

A spread stands for a covariance Σ. It is a row of standard deviations for each class (classes × dimensions) where Σ is diagonal, and else
a matrix A with AᵀA = Σ for each class (classes × rank × dimensions), which is small where there are fewer clients than dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FLOOR = 1e-6  # added to variances, so that no dimension is quite without noise


def spread_between(means: Tensor, present: Tensor, centres: Tensor, *, full: bool = False) -> Tensor:
    """How the clients' class means (clients × classes × dimensions) scatter about their centres; none where one client has the class."""
    clients = present.sum(0)
    weight = present / (clients - 1).clamp(min=1).to(means.dtype).sqrt()
    deviations = (means - centres) * weight.unsqueeze(2)
    several = clients > 1
    if full:
        return torch.linalg.qr(deviations.transpose(0, 1)).R * several.view(-1, 1, 1)
    return (deviations.square().sum(0) + FLOOR).sqrt() * several.unsqueeze(1)


def spread_total(squares: Tensor, centres: Tensor) -> Tensor:
    """Standard deviations within and between clients, from the mean of z² and the mean of z of each class."""
    return (squares - centres.square()).clamp(min=0).sqrt()


def kept_where_unseen(seen: Tensor, new: Tensor, old: Tensor | None) -> Tensor:
    """`new` for the classes seen now, `old` for the others; matrices of different rank are filled up with zeros."""
    if old is None:
        return new
    if new.dim() == 3:
        rank = max(new.shape[1], old.shape[1])
        new, old = (F.pad(t, (0, 0, 0, rank - t.shape[1])) for t in (new, old))
    return torch.where(seen.view(-1, *(1,) * (new.dim() - 1)), new, old)


def drawn_features(
    centres: Tensor, spread: Tensor, scale: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """One feature for each label c, from Normal(centre_c, scale_c²·Σ_c)."""
    noise = torch.randn(len(labels), spread.shape[1], generator=generator, dtype=centres.dtype).to(centres.device)
    if spread.dim() == 2:
        noise = noise * spread[labels]
    else:
        shaped = centres.new_zeros(len(labels), centres.shape[1])
        for c in labels.unique():
            shaped[labels == c] = noise[labels == c] @ spread[c]
        noise = shaped
    return centres[labels] + scale[labels].unsqueeze(1) * noise
