"""Optimizers of local training: torch.optim on one flat vector, the weights of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_

from fedtailor.learning.protocol import Protocol
from fedtailor.nets.net import Part, Pull


class Optimizer:
    """The protocol's optimizer for one part, at a learning rate that may differ from step to step."""

    def __init__(self, part: Part, protocol: Protocol, state: Mapping[str, Tensor]) -> None:
        """`state` is the `state` of an earlier optimizer of this part, or empty."""
        self.part = part
        self.clip_norm = protocol.clip_norm
        self._weights = part._trainable.joined  # the memory itself, or a copy if it is in several pieces
        self._rule = _rule([self._weights], protocol)
        self._rule.state[self._weights].update({name: tensor.clone() for name, tensor in state.items()})

    def step(self, gradient: Tensor | None, lr: float, pull: Pull | None = None) -> None:
        """Take one step down a gradient, a vector over the part's trainable entries, and down a pull."""
        if pull is not None:
            towards = self.part.pull_gradient(pull)
            gradient = towards if gradient is None else gradient + towards
        if not self.part._trainable.whole:
            self._weights.copy_(self.part._trainable.joined)
        self._weights.grad = gradient
        if self.clip_norm:
            clip_grad_norm_([self._weights], self.clip_norm)
        for group in self._rule.param_groups:
            group["lr"] = lr
        self._rule.step()
        self._weights.grad = None
        if not self.part._trainable.whole:
            self.part._trainable.load(self._weights)

    @property
    def state(self) -> dict[str, Tensor]:
        """What the next step depends on besides its gradient: momentum, moments, number of steps."""
        return {name: value for name, value in self._rule.state[self._weights].items() if isinstance(value, Tensor)}


class StackedOptimizer:
    """The protocol's optimizer for the stacked weights of several clients, each of which has a row."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        protocol: Protocol,
        lr: float,
        earlier: StackedOptimizer | None,
        some: slice | list[int],
    ) -> None:
        """`earlier` took the steps before, of more clients: `some` of them go on."""
        self.weights = list(weights.values())
        self.clip_norm = protocol.clip_norm
        self._rule = _rule(self.weights, protocol)
        for group in self._rule.param_groups:
            group["lr"] = lr
        if earlier is not None:
            for new, old in zip(self.weights, earlier.weights, strict=True):
                state = earlier._rule.state[old]
                self._rule.state[new] = {name: t[some] if t.ndim == old.ndim else t for name, t in state.items()}

    def step(self, gradients: Sequence[Tensor]) -> None:
        if self.clip_norm:
            lengths = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
            factors = (self.clip_norm / (lengths + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_ has it
            gradients = [g * factors.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
        for tensor, gradient in zip(self.weights, gradients, strict=True):
            tensor.grad = gradient
        self._rule.step()
        for tensor in self.weights:
            tensor.grad = None


def _rule(weights: list[Tensor], protocol: Protocol) -> optim.Optimizer:
    match protocol.optimizer:
        case "adam":
            return optim.Adam(weights, weight_decay=protocol.weight_decay)
        case "adamw":
            return optim.AdamW(weights, weight_decay=protocol.weight_decay)
    return optim.SGD(weights, momentum=protocol.momentum, weight_decay=protocol.weight_decay)
