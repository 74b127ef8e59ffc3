"""A Gaussian for each class in the space of features: estimated from class means of clients, drawn from by clients.

A spread stands for a covariance Σ. It is a row of standard deviations for each class (classes × dimensions) where Σ is diagonal, and else
a matrix A with AᵀA = Σ for each class (classes × rank × dimensions), which is small where there are fewer clients than dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.mixing import Payload, State
from fedtailor.learning.prototypes import mean_of_means

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


def gaussians_of(told: Sequence[Payload], known: State, spread: Literal["diag", "full", "total"] | None) -> State:
    """The Gaussians of all classes, as state: those of the classes that clients told of, and the known ones of the others.

    Clients tell their class means as `prototypes`, which `classes` they have and, for the total spread, the means of z² as `squares`.
    The result has `prototypes`, the mask `known` and, of a kind unless it is None, the `spread`: that of clients' means (diag: variances
    only, or full), or the total, which is within clients as well.
    """
    means, present = ([payload[name] for payload in told] for name in ("prototypes", "classes"))
    centres, seen = mean_of_means(means, present)
    found = {
        "prototypes": kept_where_unseen(seen, centres, known.get("prototypes")),
        "known": seen | known.get("known", seen),
    }
    if spread == "total":
        new = spread_total(mean_of_means([payload["squares"] for payload in told], present)[0], centres)
    elif spread is not None:
        new = spread_between(torch.stack(means), torch.stack(present), centres, full=spread == "full")
    else:
        return found
    return {**found, "spread": kept_where_unseen(seen, new, known.get("spread"))}


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


def drawn_samples(
    centres: Tensor,
    spread: Tensor,
    known: Tensor,
    counts: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    uniform: bool = False,
    scaled: bool = True,
) -> tuple[Tensor, Tensor]:
    """Features and labels of up to `size` samples: labels drawn as `counts` says (`uniform`: all alike), those of unknown classes left out.

    The noise is scaled by a class's count, the most frequent one's being 1, or not at all.
    """
    alike = torch.ones_like(counts)
    prior = alike if uniform else counts
    labels = torch.multinomial(prior.cpu(), size, replacement=True, generator=generator).to(known.device)
    labels = labels[known[labels]]
    scale = counts / counts.max() if scaled else alike
    return drawn_features(centres, spread, scale, labels, generator), labels
