"""FedALA against plain tensors, its identity with FedAvg, and how long its weights learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.fedala import FedALA
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.mlp import MLP
from fedtailor.randomness import torch_stream

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
COARSE = {**SETTINGS, "dtype": "float32", "batch": 4}
TOP = {1: 3, 2: 21, 3: 27, 4: 57, 9: 57}  # entries of the uppermost tensors: bias, weight, bias, weight


def simulate(federation, method, **settings) -> Simulation:
    return Simulation(federation, method, NET, **{"rounds": 4, **SETTINGS, **settings})


def loss_of(model, x, y):
    hidden = torch.relu(x @ model[:30].view(6, 5).T + model[30:36])
    return F.cross_entropy(hidden @ model[36:54].view(3, 6).T + model[54:], y)


def descend(vector, loss, lr=0.1):
    leaf = vector.clone().requires_grad_()
    return vector - lr * torch.autograd.grad(loss(leaf), leaf)[0]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def learned(model, own, weights, x, y, eta, epochs, threshold=0.1):
    """W after up to so many full-batch steps, until the last ten losses deviate by less than the threshold."""
    size, losses = len(own), []

    def mixture(w):
        return torch.cat([model[:-size], own + (model[-size:] - own) * w])

    for _ in range(epochs):
        losses.append(loss_of(mixture(weights), x, y).item())
        weights = descend(weights, lambda w: loss_of(mixture(w), x, y), eta).clamp(0, 1)
        if len(losses) >= 10 and np.std(losses[-10:]) < threshold:
            break
    return mixture(weights), weights


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("sync_all", "join"), [(True, 0.5), (False, 1.0), (False, 0.5)])
def test_whole_rounds_by_hand(federation, layers, sync_all, join):
    method = FedALA(layers=layers, s=1.0, eta_w=3.0, sync_all=sync_all)
    simulation = simulate(federation, method, join=join)
    model = simulation.server.state["model"]
    tops, weights, models = dict.fromkeys(range(4), model[-TOP[layers] :]), {}, dict.fromkeys(range(4), model)
    data = [(c.train.x.double(), c.train.y) for c in federation.clients]

    def mixed(i):
        if torch.equal(tops[i], model[-TOP[layers] :]):
            return model, weights.get(i)
        start = weights.get(i, torch.ones(TOP[layers], dtype=torch.float64))
        return learned(model, tops[i], start, *data[i], eta=3.0, epochs=1 if i in weights else 50)

    def take_in(i):
        local, w = mixed(i)
        tops[i] = local[-TOP[layers] :]
        if w is not None:
            weights[i] = w

    for _ in range(4):
        simulation.step()
        ups = {}
        for i in simulation.traffic.up:
            if not sync_all:
                take_in(i)
            local = torch.cat([model[: -TOP[layers]], tops[i]])
            ups[i] = descend(local, lambda m, i=i: loss_of(m, *data[i]))
            tops[i] = ups[i][-TOP[layers] :]
            close(simulation.traffic.up[i]["model"], ups[i])
        total = sum(len(data[i][1]) for i in ups)
        model = sum(len(data[i][1]) / total * up for i, up in ups.items())
        close(simulation.server.state["model"], model)
        for i, client in enumerate(federation.clients):
            if sync_all:
                take_in(i)
            final = torch.cat([model[: -TOP[layers]], tops[i]])
            if not sync_all:  # who took part would start from the new mixture, who sat out has what it had
                final = mixed(i)[0] if i in ups else models[i]
            close(simulation.state(i)["top"], tops[i])
            if i in weights:
                close(simulation.state(i)["weights"], weights[i])
            x, y = client.test.x.double(), client.test.y
            assert simulation.scores[i].loss == pytest.approx(loss_of(final, x, y).item() * len(y))
        models |= ups
    assert any((w < 1).any() for w in weights.values())


@pytest.mark.parametrize("sync_all", [True, False])
@pytest.mark.parametrize("layers", [2, 4])
def test_weights_of_one_are_fedavg_to_the_bit(federation, sync_all, layers):
    mixing = simulate(federation, FedALA(fixed_w=1.0, sync_all=sync_all, layers=layers), **COARSE, join=0.5).run()
    plain = simulate(federation, FedAvg(), **COARSE, join=0.5).run()
    assert torch.equal(mixing.server.state["model"], plain.server.state["model"])
    evaluated = (
        range(4) if sync_all else plain.traffic.up
    )  # who sits out has its old model, FedAvg's clients the new one
    assert all(mixing.scores[i] == plain.scores[i] for i in evaluated)
    still = simulate(federation, FedALA(eta_w=0.0, sync_all=sync_all, layers=layers), **COARSE, join=0.5).run()
    assert torch.equal(still.server.state["model"], plain.server.state["model"])


def test_a_weight_of_zero_keeps_the_own_top(federation):
    simulation = simulate(federation, FedALA(fixed_w=0.0), rounds=2).run()
    assert all(torch.equal(simulation.state(i)["top"], simulation.traffic.up[i]["model"][-21:]) for i in range(4))
    assert not torch.equal(simulation.state(0)["top"], simulation.server.state["model"][-21:])


@pytest.mark.parametrize(("threshold", "epochs"), [(0.0, 50), (1e9, 10)])
def test_the_first_time_weights_learn_until_they_settle_and_then_for_one_epoch(federation, threshold, epochs):
    method = FedALA(s=1.0, eta_w=0.05, threshold=threshold)
    simulation = simulate(federation, method, rounds=2)
    simulation.step()
    model = simulation.server.state["model"]
    x, y = federation.clients[2].train.x.double(), federation.clients[2].train.y
    ones = torch.ones(21, dtype=torch.float64)
    own = simulation.traffic.up[2]["model"][-21:]
    _, weights = learned(model, own, ones, x, y, eta=0.05, epochs=epochs, threshold=0.0)
    close(simulation.state(2)["weights"], weights)
    simulation.step()
    own, model = simulation.traffic.up[2]["model"][-21:], simulation.server.state["model"]
    _, weights = learned(model, own, weights, x, y, eta=0.05, epochs=1)
    close(simulation.state(2)["weights"], weights)


def test_weights_learn_on_a_random_share_of_the_samples(federation):
    simulation = simulate(federation, FedALA(s=0.5, first_epochs=1), rounds=1).run()
    for i, client in enumerate(federation.clients):
        n = len(client.train)
        chosen = torch.randperm(n, generator=torch_stream(3, "sync", 1, i, "weights"))[: max(1, round(n / 2))]
        x, y = client.train.x.double()[chosen], client.train.y[chosen]
        own, ones = simulation.traffic.up[i]["model"][-21:], torch.ones(21, dtype=torch.float64)
        _, weights = learned(simulation.server.state["model"], own, ones, x, y, eta=1.0, epochs=1)
        close(simulation.state(i)["weights"], weights)


@pytest.mark.parametrize("settings", [{"eval_point": "after_train"}, {"eval_every": 3}])
def test_training_does_not_depend_on_when_it_is_evaluated(federation, settings):
    usual, other = (simulate(federation, FedALA(), **COARSE, join=0.5, **s).run() for s in ({}, settings))
    assert torch.equal(usual.server.state["model"], other.server.state["model"])
    assert all(torch.equal(usual.state(i)["top"], other.state(i)["top"]) for i in range(4))


def test_models_travel_and_weights_do_not(federation):
    simulation = simulate(federation, FedALA(), rounds=2, join=0.5).run()
    sent = {(e.client, e.direction, e.name, e.bytes) for e in simulation.ledger.last}
    assert sent == {(i, "down", "model", 57 * 8) for i in range(4)} | {
        (i, "up", "model", 57 * 8) for i in simulation.traffic.up
    }
    assert {name for i in range(4) for name in simulation.state(i)} == {"top", "weights"}
    assert simulation.state(0)["top"].untyped_storage().nbytes() == 21 * 8  # not a view of a whole model


def test_one_class_and_tiny_clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5)).astype(np.float32)
    labels = [np.zeros(6, int), np.array([1]), np.array([2, 1, 2])]
    federation = Federation.from_clients([(x[: len(y)], y, x[:0], y[:0]) for y in labels])
    for options in ({}, {"sync_all": False}, {"layers": 4, "s": 0.1}):
        simulation = Simulation(federation, FedALA(**options), NET, rounds=3, join=0.4, lr=0.1).run()
        assert all(torch.isfinite(v).all() for i in range(3) for v in simulation.state(i).values())


def test_batchnorm_statistics_are_left_alone_while_weights_learn(federation):
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    for layers in (2, 4):
        simulation = Simulation(federation, FedALA(layers=layers), net, rounds=1, batch=4, lr=0.1)
        plain = Simulation(federation, "fedavg", net, rounds=1, batch=4, lr=0.1).run()
        simulation.run()
        assert "weights" in simulation.state(0)
        assert torch.equal(simulation.state(0)["buffers.model"], plain.state(0)["buffers.model"])


@pytest.mark.parametrize("sync_all", [True, False])
def test_a_newcomer_starts_from_the_mixture_with_the_global_model(federation, sync_all):
    method = FedALA(fixed_w=1.0, sync_all=sync_all)
    simulation = simulate(federation, method, rounds=2, epochs=0)
    simulation.server.state["model"] = torch.arange(57.0, dtype=torch.float64)
    newcomer = simulation.worker._client(0, 0, "onboard")
    method.onboard(newcomer, method.send(simulation.server, 0))
    assert torch.equal(newcomer.state["top"], simulation.server.state["model"][-21:])
