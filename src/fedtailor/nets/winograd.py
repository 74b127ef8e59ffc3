"""Convolutions with a fraction of the multiplications: Winograd's minimal filtering, as matrix products."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

SIDE = 4  # pixels of the output that one tile of the input gives, in each direction
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0, 2.0, -0.5)  # small and spread, which keeps the error near that of summing directly
FEWEST_TILES, FEWEST_CHANNELS = 32, 32  # below, moving values about costs more than the multiplications saved


class Conv2d(nn.Conv2d):
    """A convolution that trains faster on a CPU; what it computes differs from PyTorch's by rounding alone.

    Without gradients, as in evaluation, PyTorch's own kernels are as fast; on a GPU they are faster anyway, and compiled steps use them.
    """

    def __init__(self, channels: int, outputs: int, size: int, border: int) -> None:
        super().__init__(channels, outputs, size, padding=border)
        self.border = border

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None or not self._pays(x):
            return super().forward(x)
        return convolve(x, self.weight, self.bias, self.border)

    def _pays(self, x: Tensor) -> bool:
        if not torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        rows, columns = (-(-side // SIDE) for side in _sides(x, self.weight, self.border))
        return len(x) * rows * columns >= FEWEST_TILES and self.in_channels >= FEWEST_CHANNELS


def convolve(x: Tensor, weight: Tensor, bias: Tensor, border: int) -> Tensor:
    """The convolution of images with a border of zeros and a square kernel of at most 5 pixels a side, in tiles of 4×4 outputs.

    To slide a kernel g of r values over s + r − 1 values d is to evaluate polynomials at s + r − 1 points and to multiply there:
    Aᵀ(Gg ∘ Bᵀd), where A and G evaluate s and r coefficients and B undoes an evaluation (Winograd, 1980; Lavin & Gray, 2016).
    In two directions each matrix is its Kronecker product with itself, and the ∘, summed over channels, a matrix product a point.
    """
    height, width = _sides(x, weight, border)
    below, right = (border + -side % SIDE for side in (height, width))
    y: Tensor = _Convolution.apply(pad(x, (border, right, border, below)), weight, bias)
    return y[:, :, :height, :width]


def _sides(x: Tensor, weight: Tensor, border: int) -> tuple[int, int]:
    """Height and width of what comes out."""
    _, _, height, width = x.shape
    lost = weight.shape[-1] - 1 - 2 * border
    return height - lost, width - lost


class _Convolution(torch.autograd.Function):
    """The convolution in whole tiles; written out backwards too: with what autograd would record, a step is as slow as without."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outputs, channels, size, _ = weight.shape
        a, g, b = _matrices(size, x.dtype)
        tile = SIDE + size - 1
        d = x.unfold(2, tile, SIDE).unfold(3, tile, SIDE).permute(4, 5, 0, 2, 3, 1)
        _, _, n, rows, columns, _ = d.shape
        tiles = (b @ d.reshape(len(b), -1)).view(len(b), -1, channels)
        kernels = (g @ weight.permute(2, 3, 1, 0).reshape(size**2, -1)).view(len(g), channels, outputs)
        y = (a @ torch.bmm(tiles, kernels).view(len(b), -1)).view(SIDE, SIDE, n, rows, columns, outputs)
        ctx.save_for_backward(tiles, kernels)
        ctx.size, ctx.shape = size, (n, rows, columns)
        y = y.permute(2, 3, 0, 4, 1, 5).reshape(n, rows * SIDE, columns * SIDE, outputs)
        return y.add_(bias).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        tiles, kernels = ctx.saved_tensors
        a, g, b = _matrices(ctx.size, slope.dtype)
        n, rows, columns = ctx.shape
        _, channels, outputs = kernels.shape
        pixels = slope.permute(0, 2, 3, 1).reshape(n, rows, SIDE, columns, SIDE, outputs)
        products = (a.T @ pixels.permute(2, 4, 0, 1, 3, 5).reshape(SIDE**2, -1)).view(len(b), -1, outputs)
        of_kernels = g.T @ torch.bmm(tiles.transpose(1, 2), products).view(len(b), -1)
        of_weight = of_kernels.view(ctx.size, ctx.size, channels, outputs).permute(3, 2, 0, 1)
        of_images = None
        if ctx.needs_input_grad[0]:
            of_tiles = b.T @ torch.bmm(products, kernels.transpose(1, 2)).view(len(b), -1)
            of_images = _images(of_tiles, ctx.size, n, rows, columns)
        return of_images, of_weight, slope.sum((0, 2, 3))


def _images(tiles: Tensor, size: int, n: int, rows: int, columns: int) -> Tensor:
    """Overlapping tiles summed into images: each reaches into the next block of 4×4 pixels, so there is a sum a block it touches."""
    side = SIDE + size - 1
    tiles = tiles.view(side, side, n, rows, columns, -1)
    blocks = tiles.new_zeros(n, rows + 1, SIDE, columns + 1, SIDE, tiles.shape[-1])
    for i in (0, 1):
        for j in (0, 1):
            piece = tiles[i * SIDE : (i + 1) * SIDE, j * SIDE : (j + 1) * SIDE].permute(2, 3, 0, 4, 1, 5)
            blocks[:, i : i + rows, : piece.shape[2], j : j + columns, : piece.shape[4]] += piece
    images = blocks.view(n, (rows + 1) * SIDE, (columns + 1) * SIDE, -1)
    return images[:, : rows * SIDE + size - 1, : columns * SIDE + size - 1].permute(0, 3, 1, 2)


@cache
def _matrices(kernel: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Aᵀ, G and Bᵀ for kernels of a size, in two directions."""
    size = SIDE + kernel - 1

    def evaluate(coefficients: int) -> Tensor:
        finite = [[point**power for power in range(coefficients)] for point in POINTS[: size - 1]]
        at_infinity = [0.0] * (coefficients - 1) + [1.0]
        return torch.tensor([*finite, at_infinity], dtype=torch.float64)

    one_way = evaluate(SIDE).T, evaluate(kernel), torch.linalg.inv(evaluate(size)).T
    a, g, b = (torch.kron(matrix, matrix).to(dtype) for matrix in one_way)
    return a, g, b
