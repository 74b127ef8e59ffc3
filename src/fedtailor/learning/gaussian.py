"""One Gaussian per class in feature space: estimated by the server from the clients' class means, sampled by the clients.

A spread represents a covariance Σ. If Σ is diagonal, it holds the standard deviations of each class (classes × dimensions). Otherwise it
holds a matrix A with AᵀA = Σ for each class (classes × rank × dimensions), which is small if there are fewer clients than dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.mixing import Payload, State
from fedtailor.learning.prototypes import class_means, mean_of_means
from fedtailor.learning.sample_weights import weighted, weights_of

FLOOR = 1e-6  # added to variances, so that every dimension has some noise


def spread_between(means: Tensor, present: Tensor, centres: Tensor, *, full: bool = False) -> Tensor:
    """Return the spread of the clients' class means (clients × classes × dimensions); zero for a class of a single client."""
    clients = present.sum(0)
    weight = present / (clients - 1).clamp(min=1).to(means.dtype).sqrt()
    deviations = (means - centres) * weight.unsqueeze(2)
    several = clients > 1
    if full:
        return torch.linalg.qr(deviations.transpose(0, 1)).R * several.view(-1, 1, 1)
    return (deviations.square().sum(0) + FLOOR).sqrt() * several.unsqueeze(1)


def spread_total(squares: Tensor, centres: Tensor) -> Tensor:
    """Return standard deviations within and between clients, from each class's mean of z² and mean of z."""
    return (squares - centres.square()).clamp(min=0).sqrt()


def kept_where_unseen(seen: Tensor, new: Tensor, old: Tensor | None) -> Tensor:
    """Return `new` for the classes seen now and `old` for the others; matrices of lower rank are padded with zeros."""
    if old is None:
        return new
    if new.dim() == 3:
        rank = max(new.shape[1], old.shape[1])
        new, old = (F.pad(t, (0, 0, 0, rank - t.shape[1])) for t in (new, old))
    return torch.where(seen.view(-1, *(1,) * (new.dim() - 1)), new, old)


def class_statistics(z: Tensor, y: Tensor, classes: int, *, squares: bool = False) -> Payload:
    """Compute what a client sends to `gaussians_of`: class means as `prototypes`, which `classes` it has, means of z² as `squares`."""
    means, counts = class_means(z, y, classes)
    found = {"prototypes": means, "classes": counts > 0}
    return {**found, "squares": class_means(z.square(), y, classes)[0]} if squares else found


def gaussians_of(statistics: Sequence[Payload], known: State, spread: Literal["diag", "full", "total"] | None) -> State:
    """Estimate the Gaussians of all classes from the clients' `class_statistics`; classes of no client keep the known ones.

    Return `prototypes`, the mask `known` and, unless it is None, the `spread`: that of the clients' class means (diag: variances only,
    or full), or the total spread, within clients as well.
    """
    means, present = ([payload[name] for payload in statistics] for name in ("prototypes", "classes"))
    centres, seen = mean_of_means(means, present)
    found = {
        "prototypes": kept_where_unseen(seen, centres, known.get("prototypes")),
        "known": seen | known.get("known", seen),
    }
    if spread == "total":
        new = spread_total(mean_of_means([payload["squares"] for payload in statistics], present)[0], centres)
    elif spread is not None:
        new = spread_between(torch.stack(means), torch.stack(present), centres, full=spread == "full")
    else:
        return found
    return {**found, "spread": kept_where_unseen(seen, new, known.get("spread"))}


def drawn_features(
    centres: Tensor, spread: Tensor, scale: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw one feature vector for each label c, from Normal(centre_c, scale_c²·Σ_c)."""
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
    gaussians: State,
    counts: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    uniform: bool = False,
    scaled: bool = True,
) -> tuple[Tensor, Tensor]:
    """Draw features and labels of up to `size` samples from what `gaussians_of` returned; unknown classes are left out.

    Labels are drawn in proportion to `counts` (`uniform`: with equal probability). With `scaled`, the noise of a class is multiplied by
    its count relative to that of the most frequent class.
    """
    known, ones = gaussians["known"], torch.ones_like(counts)
    prior = ones if uniform else counts
    labels = torch.multinomial(prior.cpu(), size, replacement=True, generator=generator).to(known.device)
    labels = labels[known[labels]]
    scale = counts / counts.max() if scaled else ones
    return drawn_features(gaussians["prototypes"], gaussians["spread"], scale, labels, generator), labels


def with_drawn_samples(
    z: Tensor,
    y: Tensor,
    gaussians: State,
    counts: Tensor,
    ratio: float,
    generator: torch.Generator,
    *,
    clip: bool = False,
    **how: bool,
) -> tuple[Tensor, Tensor]:
    """Add `drawn_samples` to features and labels, a fraction `ratio` of the result; `clip` sets negative drawn features to 0.

    Drawn features weigh as much as the others on average. Nothing is added while there are no Gaussians.
    """
    size = math.ceil(ratio / (1 - ratio) * len(y) - 1e-9)  # not one more because of rounding
    if not size or "spread" not in gaussians:
        return z, y
    drawn, labels = drawn_samples(gaussians, counts.to(z.dtype), size, generator, **how)
    weights = weights_of(y)
    if weights is not None:
        weights = torch.cat([weights, weights.mean().expand(len(labels))])
    both = torch.cat([z, drawn.clamp(min=0) if clip else drawn])
    return both, weighted(torch.cat([y, labels]), weights)
