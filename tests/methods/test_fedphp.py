"""FedPHP: the transfer from the inherited model, its momentum, and what is evaluated."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.experiment.onboarding import onboard
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedphp import FedPHP, mmd
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
BATCHED = {**SETTINGS, "dtype": "float32", "batch": 4}


def features(v, x):
    return torch.relu(x @ v[:30].view(6, 5).T + v[30:36])


def discrepancy(a, b):
    """The mean kernel within a, within b, less twice that between them, over all pairs."""

    def kernel(p, q):
        pairs = (p[:, None] - q[None]).square().sum(2)
        return sum(torch.exp(-pairs / (2 * width)).mean() for width in (10, 15, 20, 50))

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


def test_two_rounds_by_hand(federation):
    simulation = Simulation(federation, FedPHP(mu=0.8, lam=0.4), NET, rounds=2, epochs=2, **SETTINGS)
    server = simulation.server.state["model"].clone()
    past = [server.clone() for _ in range(4)]
    sizes = [len(c.train) for c in federation.clients]
    for t in (1, 2):
        simulation.step()
        trained = []
        for i, client in enumerate(federation.clients):
            x, y = client.train.x.double(), client.train.y
            w = server
            for _ in range(2):
                w = w.clone().requires_grad_()
                z = features(w, x)
                loss = 0.6 * F.cross_entropy(z @ w[36:54].view(3, 6).T + w[54:], y)
                loss = loss + 0.4 * discrepancy(z, features(past[i], x))
                w = (w - 0.1 * torch.autograd.grad(loss, w)[0]).detach()
            momentum = 0.8 * t / 2
            past[i] = (1 - momentum) * w + momentum * past[i]
            trained.append(w)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], w, rtol=0, atol=1e-10)
            torch.testing.assert_close(simulation.state(i)["inherited"], past[i], rtol=0, atol=1e-10)
            assert torch.equal(simulation.state(i)["trained"], simulation.traffic.up[i]["model"])
        server = sum(n / sum(sizes) * v for n, v in zip(sizes, trained, strict=True))
        torch.testing.assert_close(simulation.server.state["model"], server, rtol=0, atol=1e-10)


def test_discrepancy_is_zero_for_equal_samples_and_positive_for_others():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 4, dtype=torch.float64, generator=generator) for n in (7, 5))
    assert mmd(a, a).item() == pytest.approx(0, abs=1e-15)
    assert mmd(a, a[torch.randperm(7, generator=generator)]).item() == pytest.approx(0, abs=1e-12)
    assert mmd(a, b + 3).item() == pytest.approx(float(discrepancy(a, b + 3)), abs=1e-12)
    assert 0 < mmd(a, b) < mmd(a, b + 3)
    assert mmd(a[:1], b[:1]) > 0  # one sample each: still a distance


def test_without_transfer_the_global_model_is_fedavgs_to_the_bit(federation):
    models = [
        Simulation(federation, m, NET, rounds=3, join=0.5, **BATCHED).run().server.state["model"]
        for m in (FedPHP(lam=0.0), FedAvg())
    ]
    assert torch.equal(*models)


def test_without_momentum_the_inherited_model_is_the_last_trained(federation):
    simulation = Simulation(federation, FedPHP(mu=0.0), NET, rounds=2, **BATCHED).run()
    for i in range(4):
        assert torch.equal(simulation.state(i)["inherited"], simulation.state(i)["trained"])


def test_momentum_grows_with_participation_or_with_the_rounds(federation):
    logged = {}
    for schedule in ("participation", "round"):
        simulation = Simulation(federation, FedPHP(schedule=schedule), NET, rounds=8, join=0.5, **BATCHED)
        times = dict.fromkeys(range(4), 0)
        for t in range(1, 9):
            simulation.step()
            for i, outcome in simulation.outcomes.items():
                times[i] += 1
                share = times[i] / 4 if schedule == "participation" else t / 8
                assert outcome.logged["momentum"] == pytest.approx(0.9 * min(1.0, share))
        logged[schedule] = times
    assert sum(logged["round"].values()) == 16


def test_the_freshly_trained_model_is_scored_and_kept(federation):
    simulation = Simulation(federation, FedPHP(), NET, rounds=3, join=0.25, **SETTINGS)
    trained: dict[int, torch.Tensor] = {}
    for _ in range(3):
        simulation.step()
        trained |= {i: up["model"] for i, up in simulation.traffic.up.items()}
        for i, client in enumerate(federation.clients):
            w = trained.get(i, simulation.server.state["model"])
            logits = features(w, client.test.x.double()) @ w[36:54].view(3, 6).T + w[54:]
            assert simulation.scores[i].correct == (logits.argmax(1) == client.test.y).sum()
            model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters())
            assert torch.equal(model, w)


def test_running_statistics_are_inherited_with_the_weights(federation):
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    simulation = Simulation(federation, FedPHP(mu=0.6), net, rounds=1, batch=4, lr=0.1).run()
    for i in range(4):
        state = simulation.state(i)
        initial = torch.tensor([0.0] * 4 + [1.0] * 4)
        expected = 0.4 * state["buffers.model"] + 0.6 * initial
        torch.testing.assert_close(state["buffers.inherited"], expected)
        assert not torch.allclose(state["buffers.model"], initial)


def test_only_the_common_model_travels(federation):
    simulation = Simulation(federation, FedPHP(), NET, rounds=2, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", 57 * 8),
        ("down", "model", 57 * 8),
    }


def test_a_newcomer_has_no_past_to_learn_from(federation):
    """Its inherited model is the global one it received, from which one step does not yet differ."""
    simulation = Simulation(federation, FedPHP(lam=0.4), NET, rounds=2, **SETTINGS).run()
    data = federation.clients[1]
    alone = Federation.from_clients([(data.train.x, data.train.y, data.test.x, data.test.y)])
    w = simulation.server.state["model"].clone().requires_grad_()
    logits = features(w, data.train.x.double()) @ w[36:54].view(3, 6).T + w[54:]
    expected = w - 0.1 * 0.6 * torch.autograd.grad(F.cross_entropy(logits, data.train.y), w)[0]
    model = torch.nn.utils.parameters_to_vector(onboard(simulation, alone).model.parameters())
    torch.testing.assert_close(model, expected, rtol=0, atol=1e-12)
