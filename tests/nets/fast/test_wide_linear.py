"""Steps of wide linear layers against those of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtailor.nets import Net
from fedtailor.nets.fast import WideLinear, wide_linear
from fedtailor.nets.net import Pull

LR = 0.1


@pytest.fixture(autouse=True)
def every_layer_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_linear, "WIDE", 1)


def net_of(kind: type[nn.Linear]) -> Net:
    torch.manual_seed(0)
    return Net(nn.Sequential(kind(4, 6), nn.ReLU(), kind(6, 5), nn.Tanh(), nn.Linear(5, 3)).double())


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 4, generator=generator, dtype=torch.float64), torch.randint(3, (8,), generator=generator)


def plain_loss(net: Net) -> Tensor:
    x, y = batch()
    return cross_entropy(net(x), y)


def loss_of_two_uses(net: Net) -> Tensor:
    other, labels = batch(2)
    return plain_loss(net) + cross_entropy(net(other), labels)


def loss_with_decay(net: Net) -> Tensor:
    """The layers' weights get slopes from outside of the layers too."""
    return plain_loss(net) + sum((p**2).sum() for p in net.parameters())


@pytest.mark.parametrize("loss", [plain_loss, loss_of_two_uses, loss_with_decay])
@pytest.mark.parametrize("part", ["all", "body", "head"])
@pytest.mark.parametrize("pulled", [False, True])
def test_a_step_is_pytorchs(loss: Callable[[Net], Tensor], part: str, pulled: bool) -> None:
    ours, theirs = net_of(WideLinear), net_of(nn.Linear)
    for net in (ours, theirs):
        stepping = getattr(net, part)
        pull = Pull(torch.ones_like(stepping.vector), 0.3) if pulled else None
        for _ in range(3):
            stepping.step(loss(net), LR, pull)
    assert not torch.equal(ours.all.vector, net_of(WideLinear).all.vector)
    torch.testing.assert_close(ours.all.vector, theirs.all.vector, rtol=0, atol=1e-14)


def test_without_a_step_the_gradient_is_formed() -> None:
    ours, theirs = net_of(WideLinear), net_of(nn.Linear)
    torch.testing.assert_close(ours.all.gradient(plain_loss(ours)), theirs.all.gradient(plain_loss(theirs)))
    ours.all.step(plain_loss(ours), LR)
    theirs.all.step(plain_loss(theirs), LR)
    torch.testing.assert_close(ours.body.gradient(plain_loss(ours)), theirs.body.gradient(plain_loss(theirs)))


@pytest.mark.parametrize("loss", [plain_loss, loss_of_two_uses, loss_with_decay])
def test_the_slope_along_a_direction_is_the_gradient_times_it(loss: Callable[[Net], Tensor]) -> None:
    net, theirs = net_of(WideLinear), net_of(nn.Linear)
    along = torch.linspace(-1, 1, len(net.body), dtype=torch.float64)
    exact = theirs.body.gradient(loss(theirs)).dot(along).item()
    assert net.body.directional_derivative(loss(net), along) == pytest.approx(exact, abs=1e-13)
    assert theirs.body.directional_derivative(loss(theirs), along) == pytest.approx(exact, abs=1e-13)


def test_the_gradient_of_the_inputs_reaches_through() -> None:
    (x, y), slopes = batch(), []
    for net in (net_of(WideLinear), net_of(nn.Linear)):
        place = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad(cross_entropy(net(place), y), place)[0])
    torch.testing.assert_close(*slopes)


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    net, before = net_of(WideLinear), net_of(WideLinear).all.vector
    with patch.object(torch.autograd, "grad", side_effect=RuntimeError("broken")), pytest.raises(RuntimeError):
        net.all.step(plain_loss(net), LR)
    assert torch.equal(net.all.vector, before)
    assert all(layer.factors is None for layer in net.all._wide)
    x, y = batch()
    cross_entropy(net(x), y).backward()
    assert all(layer.weight.grad is not None for layer in net.all._wide)


def test_the_layer_is_drawn_and_named_as_pytorchs() -> None:
    torch.testing.assert_close(net_of(WideLinear).state_dict(), net_of(nn.Linear).state_dict(), rtol=0, atol=0)


def test_a_narrow_layer_and_one_without_gradients_take_pytorchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = WideLinear(4, 6).double()
    x, _ = batch()
    with patch.object(wide_linear._Product, "apply", side_effect=AssertionError("taken")):
        with torch.no_grad():
            layer(x)
        with pytest.raises(AssertionError, match="taken"):
            layer(x)
        monkeypatch.setattr(wide_linear, "WIDE", 25)
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
