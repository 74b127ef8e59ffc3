"""A small vision transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention

from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.registry import option

MOST_PATCHES = 64  # the cost of attention grows with the square of their number


class Block(nn.Module):
    """Self-attention over the patches, then a two-layer perceptron on each, both with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout) if dropout > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.fc2(gelu(self.fc1(self.norm2(x)))))

    def attend(self, x: Tensor) -> Tensor:
        n, patches, width = x.shape
        q, k, v = self.qkv(x).view(n, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, patches, width))


class VisionTransformer(nn.Module):
    """Patch embedding with learned positions, the blocks, the mean over patches, then the head `fc`."""

    def __init__(
        self, shape: tuple[int, ...], patch: int, width: int, depth: int, heads: int, dropout: float, classes: int
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.margin = (0, -breadth % patch, 0, -height % patch)  # zeros that complete the last patches
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.empty(math.ceil(height / patch) * math.ceil(breadth / patch), width))
        nn.init.trunc_normal_(self.position, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(pad(x, self.margin)).flatten(2).transpose(1, 2) + self.position
        return self.fc(self.norm(self.blocks(z)).mean(1))


@nets.register("vit", "vision-transformer")
@dataclass(frozen=True)
class ViT(Architecture):
    """A small vision transformer with mean pooling over patches, sized for images of 8×8 to 64×64."""

    paper: ClassVar[str] = "Dosovitskiy et al., 2021"

    patch: int = option(
        0,
        "side of a patch in pixels; 0: the smallest, from 2 on, that gives about 64 patches at most",
        at_least=0,
        at_most=2**10,
    )
    width: int = option(64, "length of a patch's vector and of the features", at_least=1, at_most=2**16)
    depth: int = option(4, "number of blocks", at_least=1, at_most=2**10)
    heads: int = option(4, "attention heads; must divide width", at_least=1, at_most=2**10)
    dropout: float = option(0.0, "dropout rate of a block's outputs", at_least=0.0, at_most=0.9)

    def build(self, task: Task) -> nn.Module:
        require(self, task, "images", smallest=max(2, self.patch))
        if self.width % self.heads:
            raise FedTailorError(f"net.width = {self.width} must be a multiple of net.heads = {self.heads}.")
        _, height, breadth = task.shape
        patch = self.patch or max(2, math.ceil(math.sqrt(height * breadth / MOST_PATCHES)))
        return VisionTransformer(task.shape, patch, self.width, self.depth, self.heads, self.dropout, task.outputs)
