"""Adversarial samples: inputs moved slightly in the direction that increases a net's loss most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.errors import FedTailorError
from fedtailor.learning.samples import CHUNK, Samples
from fedtailor.nets.net import Net

Space = Literal["pixel", "normalised"]


@dataclass(frozen=True)
class Box:
    """Bounds of an attack in the net's inputs: valid inputs lie in low..high, and `unit` is the length of a step of 1 there."""

    unit: Tensor
    low: Tensor
    high: Tensor


def attack_box(samples: Samples, space: Space = "pixel") -> Box:
    """Return the bounds of pixels, 0..1 before normalization, or ("normalised", as in some published code) 0..1 after it.

    Measurements are not pixels: they move by their own unit and have no bounds.
    """
    if samples.is_tokens:
        raise FedTailorError("Token ids cannot be moved slightly, so there are no adversarial samples of text.")
    zero, one = torch.zeros_like(samples.mean), torch.ones_like(samples.std)
    if space == "normalised":
        return Box(one, zero, one)
    if not samples.is_pixels:
        return Box(one, zero - torch.inf, one * torch.inf)
    return Box(1 / samples.std, -samples.mean / samples.std, (1 - samples.mean) / samples.std)


def pgd(
    net: Net,
    x: Tensor,
    y: Tensor,
    box: Box,
    generator: torch.Generator,
    *,
    epsilon: float = 8 / 255,
    step: float = 2 / 255,
    steps: int = 20,
) -> Tensor:
    """Maximize the cross-entropy by projected gradient ascent within ε of x in every entry, from a random start (Madry et al., 2018).

    The net is put in eval mode, so that samples do not depend on each other.
    """
    net.eval()
    noise = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    reach = epsilon * box.unit
    moved = (x + (2 * noise - 1) * reach).clamp(box.low, box.high)
    pieces = [slice(start, start + CHUNK) for start in range(0, len(x), CHUNK)]
    for piece in pieces * steps:
        place = moved[piece].requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net(place), y[piece]), place)
        ahead = place.detach() + step * box.unit * gradient.sign()
        near = torch.clamp(ahead, x[piece] - reach, x[piece] + reach)
        moved[piece] = near.clamp(box.low, box.high)
    return moved
