"""The written-out steps of stacked perceptrons: those that autograd finds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedtailor.nets.chain import Chain, chain_of

NAMES = {"1.weight": "low.weight", "1.bias": "low.bias", "3.weight": "high.weight", "3.bias": "high.bias"}
CLIENTS, LR = 3, 0.1


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def stacked_weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    named = dict(perceptron().named_parameters())
    return {NAMES[name]: torch.randn(CLIENTS, *p.shape, dtype=torch.float64) for name, p in named.items()}


def chain() -> Chain:
    found = chain_of(perceptron(), NAMES)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "trained",
    [tuple(NAMES.values()), ("low.weight", "low.bias"), ("high.weight",), ("low.bias", "high.bias")],
    ids=["all", "body", "a weight", "biases"],
)
def test_a_step_is_that_of_autograd(trained: tuple[str, ...]) -> None:
    x, pulls = torch.randn(CLIENTS, 4, 2, 3).double(), torch.randn(CLIENTS, 4, 5).double()
    layers, weights, expected = chain(), stacked_weights(), stacked_weights()
    learned = [expected[name].requires_grad_() for name in trained]
    passed = layers.passed(expected, x)
    loss = (
        passed[-1].square().sum() + (passed[3] * pulls).sum()
    )  # of what comes out, and of what goes into the last layer
    for tensor, gradient in zip(learned, torch.autograd.grad(loss, learned), strict=True):
        tensor.data -= LR * gradient

    seen = layers.passed(weights, x)
    for factors in layers.back(weights, trained, seen, {4: 2 * seen[-1], 3: pulls}):
        factors.descend(weights, trained, LR)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-12, atol=1e-12)


def test_a_chain_computes_what_its_module_does_for_each_client() -> None:
    module, weights, x = perceptron().double(), stacked_weights(), torch.randn(CLIENTS, 4, 2, 3).double()
    outputs = chain()(weights, x)
    for client in range(CLIENTS):
        own = {inner: weights[name][client] for inner, name in NAMES.items()}
        torch.testing.assert_close(outputs[client], torch.func.functional_call(module, own, (x[client],)))


@pytest.mark.parametrize(
    ("layer", "is_chain", "has_back"),
    [(nn.Identity(), True, True), (nn.Tanh(), True, False), (nn.LayerNorm(5), False, False)],
    ids=["identity", "tanh", "norm"],
)
def test_which_modules_are_chains(layer: nn.Module, is_chain: bool, has_back: bool) -> None:
    module = nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 2))
    found = chain_of(module, {name: name for name, _ in module.named_parameters()})
    assert (found is not None) == is_chain
    assert found is None or found.has_back == has_back
