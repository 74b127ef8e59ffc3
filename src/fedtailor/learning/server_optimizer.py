"""Optimizers of the server, which take w − (mean of the clients) as a gradient (Reddi et al., 2021; Hsu et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.learning.mixing import State
from fedtailor.learning.protocol import Protocol


def server_step(protocol: Protocol, weights: Tensor, mean: Tensor, state: State) -> tuple[Tensor, State]:
    """Return the new weights and the new state of the optimizer; the arguments stay unchanged."""
    if protocol.server_optimizer == "momentum":
        return _momentum_step(protocol, weights, mean, state)
    return _adaptive_step(protocol, weights, mean, state)


def _momentum_step(protocol: Protocol, weights: Tensor, mean: Tensor, state: State) -> tuple[Tensor, State]:
    """Take a step of FedAvgM."""
    lr = 1.0 if protocol.server_lr is None else protocol.server_lr
    new = weights.clone()
    new.grad = weights - mean
    rule = torch.optim.SGD([new], lr=lr, momentum=protocol.server_momentum)
    rule.state[new].update({name: tensor.clone() for name, tensor in state.items()})
    rule.step()
    kept = {name: value for name, value in rule.state[new].items() if isinstance(value, Tensor)}
    return new.detach(), kept


def _adaptive_step(protocol: Protocol, weights: Tensor, mean: Tensor, state: State) -> tuple[Tensor, State]:
    """Take a step of FedAdagrad, FedAdam or FedYogi (Algorithm 2 of Reddi et al.).

    torch.optim cannot be used: its Adam corrects the bias of the first steps, its Adagrad starts v at another value, and it has no Yogi.
    """
    lr = 0.01 if protocol.server_lr is None else protocol.server_lr
    beta1, beta2, tau = protocol.server_momentum, protocol.server_beta2, protocol.server_tau
    delta = mean - weights
    square = delta.square()
    m = beta1 * state.get("m", torch.zeros_like(delta)) + (1 - beta1) * delta
    v = state.get("v", torch.full_like(delta, tau**2))
    match protocol.server_optimizer:
        case "adagrad":
            v = v + square
        case "adam":
            v = beta2 * v + (1 - beta2) * square
        case "yogi":
            v = v - (1 - beta2) * square * torch.sign(v - square)
    return weights + lr * m / (v.sqrt() + tau), {"m": m, "v": v}
