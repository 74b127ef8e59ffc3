"""The loss around a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor.papers import landscape
from fedtailor.papers.landscape import POINTS, axis, filter_normalised, surface


def model() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 4, 2))
    net[0].weight.data[1] *= 10
    return net


def test_each_filter_of_a_direction_is_as_long_as_the_models():
    net = model()
    found = filter_normalised(net, "first")
    assert set(found) == {"0.weight", "2.weight"}
    for name, direction in found.items():
        own = dict(net.named_parameters())[name]
        torch.testing.assert_close(direction.flatten(1).norm(dim=1), own.detach().flatten(1).norm(dim=1))
    assert not torch.allclose(found["0.weight"], filter_normalised(net, "second")["0.weight"])


def test_the_centre_is_the_model_itself_and_it_is_left_as_it_was():
    net, x, y = model(), torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 0, 1, 1])
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    losses = surface(net, x, y)
    middle = POINTS // 2
    assert axis()[middle] == 0
    assert losses[middle, middle] == pytest.approx(F.cross_entropy(net(x), y).item(), rel=1e-5)
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name])
    moved = {n: p + axis()[0] * filter_normalised(net, "first")[n] for n, p in before.items() if n.endswith("weight")}
    moved = {n: moved[n] + axis()[-1] * filter_normalised(net, "second")[n] for n in moved}
    net.load_state_dict({**before, **moved})
    assert losses[0, -1] == pytest.approx(F.cross_entropy(net(x), y).item(), rel=1e-4)


def test_frozen_weights_stay(monkeypatch):
    net = model()
    net[0].weight.requires_grad_(False)
    assert set(landscape.filter_normalised(net, "first")) == {"2.weight"}
