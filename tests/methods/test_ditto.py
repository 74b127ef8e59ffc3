"""Ditto: FedAvg beside personal models that are Local with a pull."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.experiment.onboarding import onboard
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
BATCHED = {**SETTINGS, "dtype": "float32", "batch": 4}


def gradient(v, x, y):
    v = v.clone().requires_grad_()
    hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
    return torch.autograd.grad(F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y), v)[0]


def test_two_rounds_by_hand(federation):
    simulation = Simulation(federation, Ditto(lam=0.8, personal_epochs=3), NET, rounds=2, epochs=2, **SETTINGS)
    w = simulation.server.state["model"].clone()
    own = [w.clone() for _ in range(4)]
    sizes = [len(c.train) for c in federation.clients]
    for _ in range(2):
        simulation.step()
        sent = []
        for i, client in enumerate(federation.clients):
            x, y = client.train.x.double(), client.train.y
            for _ in range(3):
                own[i] = own[i] - 0.1 * (gradient(own[i], x, y) + 0.8 * (own[i] - w))
            local = w
            for _ in range(2):
                local = local - 0.1 * gradient(local, x, y)
            sent.append(local)
            torch.testing.assert_close(simulation.state(i)["personal"], own[i], rtol=0, atol=1e-12)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], local, rtol=0, atol=1e-12)
        w = sum(n / sum(sizes) * v for n, v in zip(sizes, sent, strict=True))
        torch.testing.assert_close(simulation.server.state["model"], w, rtol=0, atol=1e-12)


def test_without_the_pull_it_is_local_to_the_bit(federation):
    ditto = Simulation(federation, Ditto(lam=0.0, personal_epochs=2), NET, rounds=3, join=0.5, epochs=2, **BATCHED)
    local = Simulation(federation, Local(), NET, rounds=3, join=0.5, epochs=2, **BATCHED)
    ditto.run()
    local.run()
    for i in range(4):
        assert torch.equal(ditto.state(i)["personal"], local.state(i)["model"])
    assert [r["accuracy"] for r in ditto.metrics] == [r["accuracy"] for r in local.metrics]


def test_the_global_model_does_not_feel_the_personal_ones(federation):
    models = [
        Simulation(federation, Ditto(lam=lam, personal_epochs=p), NET, rounds=2, **BATCHED).run().server.state["model"]
        for lam, p in ((0.0, 1), (2.0, 3))
    ]
    assert torch.equal(*models)


def test_with_full_batches_the_global_model_is_fedavgs(federation):
    models = [Simulation(federation, m, NET, rounds=3, **SETTINGS).run().server.state["model"] for m in (Ditto(), FedAvg())]  # fmt: skip
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)


def test_personal_models_are_scored_and_only_global_ones_travel(federation):
    simulation = Simulation(federation, Ditto(), NET, rounds=3, join=0.5, **BATCHED).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", 57 * 4),
        ("down", "model", 57 * 4),
    }
    for i in range(4):
        model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters())
        assert torch.equal(model, simulation.state(i)["personal"])
        assert not torch.equal(model, simulation.server.state["model"])


def test_a_newcomer_starts_from_the_global_model_not_from_scratch(federation):
    simulation = Simulation(federation, Ditto(lam=0.8, personal_epochs=2), NET, rounds=2, **SETTINGS).run()
    data = federation.clients[1]
    alone = Federation.from_clients([(data.train.x, data.train.y, data.test.x, data.test.y)])
    w = simulation.server.state["model"]
    own = w
    for _ in range(2):
        own = own - 0.1 * (gradient(own, data.train.x.double(), data.train.y) + 0.8 * (own - w))
    model = torch.nn.utils.parameters_to_vector(onboard(simulation, alone).model.parameters())
    torch.testing.assert_close(model.detach(), own, rtol=0, atol=1e-12)
