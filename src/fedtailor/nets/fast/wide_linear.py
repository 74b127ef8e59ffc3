"""Linear layers that step along their gradient without writing it down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

WIDE = 2**18  # weights from which on the memory saved outweighs a call of Python in the backward pass


class WideLinear(nn.Linear):
    """A linear layer whose SGD step is one product, w ← w − η·gᵀz, of the gradients g of its outputs and its inputs z.

    With a batch of ten the gradient gᵀz has rank ten but is as large as the weights; to write it, read it and add it takes longer
    than to compute it. Where nobody steps (`unformed`), the gradient is what it always is.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.factors: list[tuple[Tensor, Tensor]] | None = (
            None  # of the gradient that was not formed: g and z of each use
        )

    def forward(self, z: Tensor) -> Tensor:
        plain = z.device.type != "cpu" or z.ndim != 2 or self.weight.numel() < WIDE
        if plain or not torch.is_grad_enabled():
            return super().forward(z)
        y: Tensor = _Product.apply(z, self.weight, self.bias, self)
        return y

    def plain(self) -> nn.Linear:
        """PyTorch's layer with the same parameters."""
        layer = nn.Linear(self.in_features, self.out_features, device="meta")
        layer.weight, layer.bias = self.weight, self.bias
        return layer

    @torch.no_grad()
    def add_gradient(self, factor: float) -> None:
        """Add a multiple of the gradient that `unformed` left to the weights, once."""
        for grad_output, z in self._take():
            self.weight.addmm_(grad_output.T, z, alpha=factor)

    @torch.no_grad()
    def directional_derivative(self, along: Tensor) -> Tensor:
        """The product of the gradient that `unformed` left with a direction: Σ g·(z alongᵀ)."""
        return sum((torch.sum(grad_output * (z @ along.T)) for grad_output, z in self._take()), along.new_zeros(()))

    def _take(self) -> list[tuple[Tensor, Tensor]]:
        factors, self.factors = self.factors or [], None
        return factors


@contextmanager
def unformed(layers: Sequence[WideLinear]) -> Iterator[None]:
    """A backward pass after which the gradients of these layers' weights are in their `factors` and, for autograd, None."""
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
