"""Random views of training images."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 4


def flip_crop(x: Tensor, black: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image with probability ½ and shift it by up to 4 pixels; `black` (one value per channel) fills the border."""
    n, channels, height, width = x.shape
    canvas = black.expand(n, channels, height + 2 * MARGIN, width + 2 * MARGIN).clone()
    canvas[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN] = x
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    top, left = torch.randint(0, 2 * MARGIN + 1, (2, n, 1), generator=generator)
    columns = torch.arange(width)
    rows = (top + torch.arange(height)).to(x.device)
    columns = (left + torch.where(mirrored, columns.flip(0), columns)).to(x.device)
    image = torch.arange(n, device=x.device)[:, None, None]
    return canvas[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
