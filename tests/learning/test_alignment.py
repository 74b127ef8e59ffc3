"""Stage-wise alignment: values by hand, refusals, and the numbers that are logged."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedtailor import FedTailorError, Protocol
from fedtailor.learning.alignment import check_stages, stage_agreement, stage_distances, stage_features
from fedtailor.learning.samples import Samples
from fedtailor.nets import Net, Task, build_net


def test_directions_first_then_distances():
    features = [torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]])]
    targets = [torch.tensor([[1.0, 1.0], [0.0, 9.0]]), torch.tensor([[1.0, 1.0, 4.0], [0.0, 0.0, 0.0]])]
    direction = (1 - 1 / math.sqrt(2)) / 2  # the second sample's directions agree
    distance = (9 / 3 + 9 / 3) / 2
    assert stage_distances(features, targets, 1).item() == pytest.approx((direction + distance) / 2)
    assert stage_distances(features, targets, 0, [2]).item() == pytest.approx(distance)
    assert stage_distances(features, targets, 4, [1]).item() == pytest.approx(direction)
    assert stage_distances(features, targets, 0, [1]).item() == pytest.approx((1 / 2 + 49 / 2) / 2)


@pytest.mark.parametrize(
    ("name", "stages"), [("cnn", 3), ("lenet", 3), ("resnet18", 4), ("resnet18-adapters", 4), ("cnn1d", 3)]
)
def test_nets_whose_stages_end_in_the_features(name, stages):
    shape = (9, 64) if name == "cnn1d" else (3, 32, 32)
    net = build_net(name, Task(shape, 4)).eval()
    x = torch.randn(2, *shape)
    found = stage_features(net, x)
    assert len(found) == stages
    assert torch.equal(net.classify(found[-1]), net(x))
    check_stages(net, (1, stages), x)
    with pytest.raises(FedTailorError, match=f"stage {stages + 1}, but the net has stages 1 to {stages}"):
        check_stages(net, (stages + 1,), x)


class Odd(nn.Module):
    """Its last stage is not what its head reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def stages(self, x):
        return [self.a(x)]

    def forward(self, x):
        return self.fc(self.b(self.a(x)))


def test_nets_that_cannot_be_aligned_are_told():
    x = torch.randn(2, 5)
    with pytest.raises(FedTailorError, match="features that its head receives"):
        check_stages(Net(Odd()), (), x)
    with pytest.raises(FedTailorError, match="does not expose stages"):
        check_stages(build_net("mlp", Task((5,), 3)), (), x)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc = nn.Linear(5, 4), nn.Linear(4, 3)

    def stages(self, x):
        return [self.a(x)]

    def forward(self, x):
        return self.fc(self.a(x))


def test_agreement_by_hand(federation):
    samples = Samples(federation.clients[0].train, federation, Protocol(dtype="float64"), ready=True)
    torch.manual_seed(0)
    own, shared = Net(Plain().double()), Net(Plain().double())
    found = stage_agreement(own, shared, samples, 3)
    z, g = own.embedder.a(samples.x), shared.embedder.a(samples.x)
    cosines = []
    for k in range(len(samples)):
        p = z[samples.y == samples.y[k]].mean(0)
        cosines.append((g[k] @ p / g[k].norm() / p.norm()).item())
    assert found["alignment_1"] == pytest.approx(sum(cosines) / len(cosines))
    norms = g.norm(dim=1)
    assert found["norm_spread_1"] == pytest.approx((norms - norms.mean()).square().mean().sqrt().item())
    assert stage_agreement(own, own, samples, 3)["alignment_1"] <= 1
