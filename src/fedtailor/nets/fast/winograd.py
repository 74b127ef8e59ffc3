"""Convolutions with a fraction of the multiplications: Winograd's minimal filtering as matrix products."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, channels_last, nn
from torch.autograd.function import once_differentiable

SIDE = 4  # output pixels per tile of the input, in each direction
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0, 2.0, -0.5)  # small and spread out: the error is near that of direct summation
FEWEST_TILES, FEWEST_CHANNELS = 32, 32  # below, moving values costs more than the saved multiplications


class Conv2d(nn.Conv2d):
    """A convolution that is faster on a CPU; its results differ from PyTorch's only by rounding.

    Without a backward pass, it is only faster if tiles cover the output exactly. On a GPU, PyTorch's own kernels are used.
    """

    def __init__(self, channels: int, outputs: int, size: int, border: int) -> None:
        super().__init__(channels, outputs, size, padding=border)
        self.border = border

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None or not self._pays(x):
            return super().forward(x)
        return convolve(x, self.weight, self.bias, self.border)

    def plain(self) -> nn.Conv2d:
        """Return PyTorch's layer with the same parameters."""
        layer = nn.Conv2d(
            self.in_channels, self.out_channels, self.weight.shape[-1], padding=self.border, device="meta"
        )
        layer.weight, layer.bias = self.weight, self.bias
        return layer

    def _pays(self, x: Tensor) -> bool:
        if self.in_channels < FEWEST_CHANNELS or x.device.type != "cpu":
            return False
        height, width = _sides(x, self.weight, self.border)
        exact = height % SIDE == width % SIDE == 0
        tiles = len(x) * -(-height // SIDE) * -(-width // SIDE)
        return tiles >= FEWEST_TILES and (exact or torch.is_grad_enabled())


def convolve(x: Tensor, weight: Tensor, bias: Tensor, border: int) -> Tensor:
    """Convolve zero-padded images with a square kernel of at most 5×5 pixels, in tiles of 4×4 outputs.

    Sliding a kernel g of r values over s + r − 1 values d means evaluating polynomials at s + r − 1 points and multiplying there:
    Aᵀ(Gg ∘ Bᵀd), where A and G evaluate s and r coefficients and B inverts an evaluation (Winograd, 1980; Lavin & Gray, 2016).
    In two dimensions, each matrix acts along both, and ∘, summed over channels, is one matrix product per point.
    """
    height, width = _sides(x, weight, border)
    y: Tensor = _Convolution.apply(x, weight, bias, border)
    return y if y.shape[2:] == (height, width) else y[:, :, :height, :width]


def _sides(x: Tensor, weight: Tensor, border: int) -> tuple[int, int]:
    """Return height and width of the output."""
    _, _, height, width = x.shape
    lost = weight.shape[-1] - 1 - 2 * border
    return height - lost, width - lost


class _Convolution(torch.autograd.Function):
    """The convolution in whole tiles, with its own backward pass: autograd would store the weights' gradient in another memory order than
    the weights, which makes the update several times slower."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, border: int) -> Tensor:
        outputs, channels, size, _ = weight.shape
        n, _, height, width = x.shape
        a, g = _matrices(size, x.dtype)
        down, across = (_tiling(side, size, border, x.dtype) for side in (height, width))
        points = SIDE + size - 1
        rows, columns = len(down) // points, len(across) // points
        d = across @ (down @ x.permute(2, 3, 0, 1).reshape(height, -1)).view(len(down), width, -1)
        tiles = d.view(points, rows, points, columns, -1).transpose(1, 2).reshape(points**2, -1, channels)
        kernels = (g @ weight.reshape(-1, size**2).T).view(-1, outputs, channels)
        y = a @ torch.bmm(tiles, kernels.transpose(1, 2)).view(points**2, -1)
        ctx.save_for_backward(tiles, kernels, down, across)
        ctx.size, ctx.shape = size, (n, rows, columns)
        y = y.view(SIDE, SIDE, rows, columns, n, outputs).permute(4, 2, 0, 3, 1, 5)
        return y.reshape(n, rows * SIDE, columns * SIDE, outputs).add_(bias).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        tiles, kernels, down, across = ctx.saved_tensors
        a, g = _matrices(ctx.size, grad_output.dtype)
        n, rows, columns = ctx.shape
        count, outputs, channels = kernels.shape
        pixels = grad_output.permute(0, 2, 3, 1).reshape(n, rows, SIDE, columns, SIDE, outputs)
        products = (a.T @ pixels.permute(2, 4, 1, 3, 0, 5).reshape(SIDE**2, -1)).view(count, -1, outputs)
        of_kernels = g.T @ torch.bmm(products.transpose(1, 2), tiles).view(count, -1)
        of_weight = of_kernels.T.contiguous().view(outputs, channels, ctx.size, ctx.size)
        of_images = None
        if ctx.needs_input_grad[0]:
            points, (height, width) = len(down) // rows, (down.shape[1], across.shape[1])
            of_tiles = torch.bmm(products, kernels).view(points, points, rows, columns, -1).transpose(1, 2)
            d = across.T @ (down.T @ of_tiles.reshape(len(down), -1)).view(height, len(across), -1)
            of_images = d.view(height, width, n, channels).permute(2, 3, 0, 1).contiguous(memory_format=channels_last)
        return of_images, of_weight, grad_output.sum((0, 2, 3)), None


@cache
@torch.inference_mode(
    False
)  # scores may be computed first, and a tensor made in inference mode could not serve training
def _matrices(kernel: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return Aᵀ and G for kernels of a size, in two dimensions: their Kronecker products with themselves."""
    one_way = _evaluate(SIDE, kernel).T, _evaluate(kernel, kernel)
    a, g = (torch.kron(matrix, matrix).to(dtype) for matrix in one_way)
    return a, g


@cache
@torch.inference_mode(False)
def _tiling(side: int, kernel: int, border: int, dtype: torch.dtype) -> Tensor:
    """Return Bᵀ for all tiles along one side, (points · tiles) × pixels; it accounts for overlapping tiles and the border."""
    b = torch.linalg.inv(_evaluate(SIDE + kernel - 1, kernel)).T
    tiles = -(-(side + 2 * border - kernel + 1) // SIDE)
    whole = torch.zeros(len(b), tiles, tiles * SIDE + kernel - 1, dtype=b.dtype)
    for k in range(tiles):
        whole[:, k, k * SIDE : k * SIDE + len(b)] = b
    return whole[:, :, border : border + side].reshape(-1, side).to(dtype)


def _evaluate(coefficients: int, kernel: int) -> Tensor:
    """Return the matrix that maps a polynomial's coefficients to its values at the points, the last one at infinity."""
    finite = [[point**power for power in range(coefficients)] for point in POINTS[: SIDE + kernel - 2]]
    return torch.tensor([*finite, [0.0] * (coefficients - 1) + [1.0]], dtype=torch.float64)
