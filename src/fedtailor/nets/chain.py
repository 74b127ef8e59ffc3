"""A perceptron of many clients as batched matrix products, which have a fraction of the overhead of `torch.func.vmap`.

Its steps of plain SGD are written out: autograd would take longer than the arithmetic, and form gradients that are as large as the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.Identity)
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (F.relu, torch.relu, torch.tanh, torch.sigmoid)

Weights = dict[str, Tensor]  # parameter name -> its tensors, one of each client


@dataclass(frozen=True)
class Linear:
    weight: str  # names of its parameters in the net
    bias: str  # empty if it has none

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        rows = x.flatten(1, -2)
        transposed = weights[self.weight].transpose(1, 2)
        out = torch.baddbmm(weights[self.bias][:, None], rows, transposed) if self.bias else torch.bmm(rows, transposed)
        return out.view(*x.shape[:-1], -1)

    def back(self, weights: Weights, x: Tensor, _: Tensor, gradient: Tensor) -> Tensor:
        return torch.bmm(gradient.flatten(1, -2), weights[self.weight]).view(x.shape)


@dataclass(frozen=True)
class Elementwise:
    function: Callable[[Tensor], Tensor]

    def __call__(self, _: Weights, x: Tensor) -> Tensor:
        return self.function(x)

    def back(self, _: Weights, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        assert self.is_relu
        return torch.ops.aten.threshold_backward(gradient, out, 0)

    @property
    def is_relu(self) -> bool:
        return self.function in (F.relu, torch.relu) or type(self.function) is nn.ReLU


class Flat:
    def __call__(self, _: Weights, x: Tensor) -> Tensor:
        return x.flatten(2)

    def back(self, _: Weights, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        return gradient.view(x.shape)


Layer = Linear | Elementwise | Flat


class Factors(NamedTuple):
    """The gradient of a linear layer's weights, as the factors of that product: what went in, and the gradient of what came out."""

    layer: Linear
    x: Tensor
    gradient: Tensor

    def descend(self, weights: Weights, trained: Collection[str], lr: float) -> None:
        """Take a step of SGD on those of the layer's parameters that are trained."""
        gradient = self.gradient.flatten(1, -2)
        if self.layer.weight in trained:
            weights[self.layer.weight].baddbmm_(gradient.transpose(1, 2), self.x.flatten(1, -2), alpha=-lr)
        if self.layer.bias in trained:
            weights[self.layer.bias].sub_(gradient.sum(1), alpha=lr)


class Chain:
    """Layers one after the other, for stacked weights and stacked samples, (clients, samples, …)."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.has_back = all(not isinstance(layer, Elementwise) or layer.is_relu for layer in layers)

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        return self.passed(weights, x)[-1]

    def passed(self, weights: Weights, x: Tensor) -> list[Tensor]:
        """What goes into the first layer, and what comes out of each."""
        found = [x]
        for layer in self.layers:
            found.append(layer(weights, found[-1]))
        return found

    def back(
        self, weights: Weights, trained: Collection[str], passed: Sequence[Tensor], gradients: Mapping[int, Tensor]
    ) -> list[Factors]:
        """The gradients of linear layers down to the lowest that is trained.

        `gradients` are those of a loss with respect to some of what `passed`, by place: the last, and others on which it also depends.
        """
        factors: list[Factors] = []
        linear = {k: layer for k, layer in enumerate(self.layers) if isinstance(layer, Linear)}
        lowest = min(k for k, layer in linear.items() if layer.weight in trained or layer.bias in trained)
        gradient = gradients[len(self.layers)]
        for k in range(len(self.layers) - 1, lowest - 1, -1):
            if k in linear:
                factors.append(Factors(linear[k], passed[k], gradient))
            if k > lowest:
                gradient = self.layers[k].back(weights, passed[k], passed[k + 1], gradient)
                gradient = gradient + gradients[k] if k in gradients else gradient
        return factors


def chain_of(module: nn.Module, names: Mapping[str, str]) -> Chain | None:
    """The layers of a perceptron; None for other modules. `names` are those of its parameters, in the module and in the net."""
    try:
        graph = torch.fx.symbolic_trace(module).graph
    except Exception:  # any module of a user's own
        return None
    nodes = list(graph.nodes)
    layers: list[Layer] = []
    for before, node in pairwise(nodes[:-1]):
        if node.args[:1] != (before,) or node.kwargs not in ({}, {"inplace": False}):
            return None
        layer = _layer(node, module, names)
        if layer is None:
            return None
        if not isinstance(layer, Elementwise) or type(layer.function) is not nn.Identity:
            layers.append(layer)
    return Chain(layers) if nodes[0].op == "placeholder" and nodes[-1].args == (nodes[-2],) else None


def _layer(node: torch.fx.Node, module: nn.Module, names: Mapping[str, str]) -> Layer | None:
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if type(layer) is nn.Linear:
            weight, bias = (names.get(f"{node.target}.{name}", "") for name in ("weight", "bias"))
            return Linear(weight, bias) if weight and bool(bias) == (layer.bias is not None) else None
        if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            return Flat()
        return Elementwise(layer) if type(layer) in ELEMENTWISE else None
    if node.op == "call_function" and node.target in FUNCTIONS and len(node.args) == 1:
        return Elementwise(FUNCTIONS[FUNCTIONS.index(node.target)])
    return Flat() if (node.op, node.target, node.args[1:]) == ("call_method", "flatten", (1,)) else None
