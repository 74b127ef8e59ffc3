"""Training a part by name, of several spans, against torch.optim on these parameters alone, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Protocol
from fedtailor.engines.worker import Worker
from fedtailor.methods.fedavg import FedAvg

KINDS = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
}


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_several_spans_trains_alone(federation, kind):
    settings, optimizer_of = KINDS[kind]
    protocol = Protocol(dtype="float64", batch=5, lr=0.05, epochs=2, **settings)
    worker = Worker(federation, FedAvg(), module(), None, protocol)
    client, other = (worker._client(2, 1, "fit") for _ in range(2))
    net, reference = client.net(), module().double()
    client.train(net.part("norm"), purpose="norm")
    chosen = [p for layer in (reference[1], reference[4]) for p in layer.parameters()]
    optimizer = optimizer_of(chosen)
    for x, y in other.batches(purpose="norm"):
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
    torch.testing.assert_close(net.all.vector, expected, rtol=0, atol=1e-12)


def test_a_kept_optimizer_of_a_part_goes_on_under_its_name(federation):
    protocol = Protocol(dtype="float64", batch=5, lr=0.05, epochs=2, optimizer="adam", optimizer_state="kept")
    client = Worker(federation, FedAvg(), module(), None, protocol)._client(2, 1, "fit")
    net = client.net()
    client.train(net.part("norm"))
    assert client.state["optimizer.model.norm.exp_avg"].shape == (len(net.part("norm")),)
