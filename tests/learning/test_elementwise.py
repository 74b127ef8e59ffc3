"""Element-wise weights: their gradient against finite differences, their bounds, and what is left untouched."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor.learning.elementwise import learned_weights
from fedtailor.nets.net import Net


@pytest.fixture
def setting():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = Net(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double())
        x, y = torch.randn(9, 4).double(), torch.arange(9) % 3
        own, other = torch.randn(2, len(net.all)).double()
        weights = torch.rand(len(net.all)).double()
    return net, x, y, own, other, weights


def loss_at(net, x, y, own, other, weights):
    mixture = net.all.vector
    mixture[-len(own) :] = own + (other - own) * weights
    net.all.vector = mixture
    return F.cross_entropy(net(x), y).item()


@pytest.mark.parametrize("part", ["head", "all"])
def test_a_step_follows_the_gradient_that_finite_differences_show(setting, part):
    net, x, y, own, other, weights = setting
    size = len(getattr(net, part))
    own, other, weights = own[-size:], other[-size:], weights[-size:]
    body = net.body.vector
    inputs, logits = (net.features(x).detach(), net.classify) if part == "head" else (x, net)
    stepped, loss = learned_weights(
        getattr(net, part), own, other, weights, [(inputs, y)], 1e-3, logits=logits, loss=F.cross_entropy, clamp=False
    )
    gradient = (weights - stepped) / 1e-3
    assert torch.equal(getattr(net, part).vector, torch.lerp(own, other, stepped))
    if part == "head":
        assert torch.equal(net.body.vector, body)
    assert loss == pytest.approx(loss_at(net, x, y, own, other, weights))
    for k in range(size):
        shift = torch.zeros(size, dtype=torch.float64)
        shift[k] = 1e-5
        up, down = (loss_at(net, x, y, own, other, weights + sign * shift) for sign in (1, -1))
        assert gradient[k].item() == pytest.approx((up - down) / 2e-5, abs=1e-8)


def test_each_batch_sees_the_mixture_of_the_one_before(setting):
    net, x, y, own, other, weights = setting
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    both, _ = learned_weights(net.all, own, other, weights, batches, 0.2, logits=net, loss=F.cross_entropy)
    one = weights
    for batch in batches:
        one, _ = learned_weights(net.all, own, other, one, [batch], 0.2, logits=net, loss=F.cross_entropy)
    assert torch.equal(both, one)
    assert not torch.equal(
        both, learned_weights(net.all, own, other, weights, batches[:1], 0.2, logits=net, loss=F.cross_entropy)[0]
    )


def test_weights_stay_between_zero_and_one_unless_told_otherwise(setting):
    net, x, y, own, other, weights = setting
    bound, _ = learned_weights(net.all, own, other, weights, [(x, y)] * 5, 50.0, logits=net, loss=F.cross_entropy)
    assert bound.min() == 0
    assert bound.max() == 1
    free, _ = learned_weights(
        net.all, own, other, weights, [(x, y)] * 5, 50.0, logits=net, loss=F.cross_entropy, clamp=False
    )
    assert free.min() < 0
    assert free.max() > 1


def test_a_batch_whose_loss_is_not_finite_is_left_out(setting):
    net, x, y, own, other, weights = setting
    stepped, _ = learned_weights(
        net.all, own, other, weights, [(x * float("inf"), y)], 1.0, logits=net, loss=F.cross_entropy
    )
    assert torch.equal(stepped, weights)
