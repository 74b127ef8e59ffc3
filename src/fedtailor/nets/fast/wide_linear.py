"""Linear layers that take SGD steps without storing their gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

WIDE = 2**18  # weights above which the memory traffic saved outweighs a Python call in the backward pass


class WideLinear(nn.Linear):
    """A linear layer whose SGD step is one product, w ← w − η·gᵀz, of the gradients g of its outputs and its inputs z.

    With a batch of ten, the gradient gᵀz has rank ten but is as large as the weights; writing, reading and adding it takes longer than
    computing it. Outside of `unformed`, the layer has an ordinary gradient.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.factors: list[tuple[Tensor, Tensor]] | None = None  # g and z of each use, in place of the gradient

    def forward(self, z: Tensor) -> Tensor:
        plain = z.device.type != "cpu" or z.ndim != 2 or self.weight.numel() < WIDE
        if plain or not torch.is_grad_enabled():
            return super().forward(z)
        y: Tensor = _Product.apply(z, self.weight, self.bias, self)
        return y

    def plain(self) -> nn.Linear:
        """Return PyTorch's layer with the same parameters."""
        layer = nn.Linear(self.in_features, self.out_features, device="meta")
        layer.weight, layer.bias = self.weight, self.bias
        return layer

    @torch.no_grad()
    def add_gradient(self, factor: float) -> None:
        """Add a multiple of the gradient that `unformed` kept as factors to the weights, and drop the factors."""
        for grad_output, z in self._take():
            self.weight.addmm_(grad_output.T, z, alpha=factor)

    @torch.no_grad()
    def directional_derivative(self, along: Tensor) -> Tensor:
        """Return the product of the gradient that `unformed` kept as factors with a direction: Σ g·(z alongᵀ)."""
        return sum((torch.sum(grad_output * (z @ along.T)) for grad_output, z in self._take()), along.new_zeros(()))

    def _take(self) -> list[tuple[Tensor, Tensor]]:
        factors, self.factors = self.factors or [], None
        return factors


@contextmanager
def unformed(layers: Sequence[WideLinear]) -> Iterator[None]:
    """Within this context, a backward pass stores the gradients of these layers' weights as `factors`; for autograd they are None."""
    for layer in layers:
        layer.factors = []
    try:
        yield
    except BaseException:
        for layer in layers:
            layer.factors = None
        raise


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor, layer: WideLinear) -> Tensor:
        ctx.save_for_backward(z, weight)
        ctx.layer = layer
        return torch.addmm(bias, z, weight.T)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        z, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad[:3]
        if ctx.layer.factors is not None:
            ctx.layer.factors.append((grad_output, z))
            of_weight = False
        return (
            grad_output @ weight if of_inputs else None,
            grad_output.T @ z if of_weight else None,
            grad_output.sum(0) if of_bias else None,
            None,
        )
