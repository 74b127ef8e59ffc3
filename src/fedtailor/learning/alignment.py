"""Align two nets stage by stage: by direction in early stages, where features are generic, and by distance in deep ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.errors import FedTailorError
from fedtailor.learning.prototypes import class_means
from fedtailor.learning.samples import Samples
from fedtailor.nets.net import Net


def stage_features(net: Net, x: Tensor) -> list[Tensor]:
    """Return the stages' maps averaged over pixels, early to deep; the last are the features that the head receives."""
    return [maps.flatten(2).mean(2) if maps.dim() > 2 else maps for maps in net.stages(x)]


@torch.no_grad()
def check_stages(net: Net, stages: Sequence[int], example: Tensor) -> None:
    """Refuse a net without stages, one whose last stage is not the input of its head, and stages that it does not have."""
    net.eval()
    found = stage_features(net, example)
    features = net.features(example)
    if found[-1].shape != features.shape or not torch.allclose(found[-1], features, rtol=1e-3, atol=1e-4):
        raise FedTailorError(
            f"{type(net.embedder).__name__} cannot be aligned by stages: the last of its stages(x), averaged over pixels, must be the "
            "features that its head receives."
        )
    beyond = [s for s in stages if not 1 <= s <= len(found)]
    if beyond:
        raise FedTailorError(f"method.hda_layers names stage {beyond[0]}, but the net has stages 1 to {len(found)}.")


def stage_distances(
    features: Sequence[Tensor], targets: Sequence[Tensor], directional: int, stages: Sequence[int] = ()
) -> Tensor:
    """Return the mean over samples and stages of 1 − cos, in the first `directional` stages, or of the mean squared difference.

    `stages` selects stages, counted from 1; empty means all.
    """
    used = stages or range(1, len(features) + 1)
    return torch.stack(
        [
            1 - F.cosine_similarity(features[s - 1], targets[s - 1]).mean()
            if s <= directional
            else F.mse_loss(features[s - 1], targets[s - 1])
            for s in used
        ]
    ).mean()


@torch.no_grad()
def stage_agreement(own: Net, shared: Net, samples: Samples, classes: int) -> dict[str, float]:
    """Return, per stage, the mean cosine of shared features with the own net's class mean, and the deviation of their norms."""
    z, g = (
        [torch.cat(stage) for stage in zip(*(stage_features(net.eval(), x) for x, _ in samples.chunks()), strict=True)]
        for net in (own, shared)
    )
    found = {}
    for stage, (mine, theirs) in enumerate(zip(z, g, strict=True), 1):
        prototypes, _ = class_means(mine, samples.y, classes)
        found[f"alignment_{stage}"] = F.cosine_similarity(theirs, prototypes[samples.y]).mean().item()
        found[f"norm_spread_{stage}"] = theirs.norm(dim=1).std(correction=0).item()
    return found
