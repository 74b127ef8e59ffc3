"""FedBABU: the body learns under a head nobody touches, until everyone fine-tunes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedtailor import Simulation
from fedtailor.methods.fedbabu import FedBABU
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
PARTS = {"full": slice(0, 57), "head": slice(36, 57), "body": slice(0, 36)}


def stepped(v, x, y, part):
    """One gradient step on a stretch of the vector."""
    v = v.clone().requires_grad_()
    hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
    g = torch.autograd.grad(F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y), v)[0]
    after = v.detach().clone()
    after[PARTS[part]] -= 0.1 * g[PARTS[part]]
    return after


@pytest.mark.parametrize("part", ["full", "head", "body"])
def test_two_rounds_and_fine_tuning_by_hand(federation, part):
    simulation = Simulation(federation, FedBABU(ft_part=part, ft_epochs=3), NET, rounds=2, epochs=2, **SETTINGS)
    w = simulation.server.net().all.vector
    for _ in range(2):
        simulation.step()
        bodies = []
        for i, client in enumerate(federation.clients):
            v = w
            for _ in range(2):
                v = stepped(v, client.train.x.double(), client.train.y, "body")
            torch.testing.assert_close(simulation.traffic.up[i]["body"], v[:36], rtol=0, atol=1e-12)
            bodies.append(v)
        w = sum(bodies) / 4  # every client counts alike
        torch.testing.assert_close(simulation.server.state["body"], w[:36], rtol=0, atol=1e-12)
    records = list(simulation)
    assert [(r["phase"], r["step"]) for r in records] == [("finish", 1), ("finish", 2), ("finish", 3)]
    for i, client in enumerate(federation.clients):
        v = w
        for _ in range(3):
            v = stepped(v, client.train.x.double(), client.train.y, part)
        torch.testing.assert_close(simulation.state(i)["personal"], v, rtol=0, atol=1e-12)


def test_the_head_never_changes_during_the_rounds_and_is_the_same_for_all(federation):
    settings = {**SETTINGS, "dtype": "float32", "batch": 4, "rounds": 3, "join": 0.5}
    simulation = Simulation(federation, FedBABU(ft_epochs=2), NET, **settings)
    initial = simulation.server.net().head.vector
    for _ in range(3):
        simulation.step()
        for i in range(4):
            assert simulation.state(i) == {}
            model = simulation.personal(i)
            head = torch.cat([model.fc.weight.reshape(-1), model.fc.bias])
            assert torch.equal(head, initial)
    simulation.run()
    for i in range(4):  # those that never took part are fine-tuned too
        model = simulation.personal(i)
        assert not torch.equal(torch.cat([model.fc.weight.reshape(-1), model.fc.bias]), initial)
        kept = torch.nn.utils.parameters_to_vector(model.parameters())
        assert torch.equal(kept, simulation.state(i)["personal"])


def test_without_fine_tuning_there_are_no_closing_steps(federation):
    simulation = Simulation(federation, FedBABU(ft_epochs=0), NET, rounds=1, **SETTINGS).run()
    assert [r["phase"] for r in simulation.metrics] == ["round"]


def test_only_bodies_travel(federation):
    simulation = Simulation(federation, FedBABU(ft_epochs=2), NET, rounds=2, **SETTINGS)
    sent = [{(e.direction, e.name, e.bytes) for e in simulation.ledger.last} for _ in simulation]
    body = 36 * 8
    assert sent == [*[{("up", "body", body), ("down", "body", body)}] * 2, {("down", "body", body)}, set()]
