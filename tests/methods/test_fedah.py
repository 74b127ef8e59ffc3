"""FedAH against plain tensors, the two ends of its weights, and who mixes when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.learning import weighted_mean
from fedtailor.methods.fedah import FedAH
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
COARSE = {**SETTINGS, "dtype": "float32", "batch": 4}


def simulate(federation, method, **settings) -> Simulation:
    return Simulation(federation, method, NET, **{"rounds": 4, **SETTINGS, **settings})


def logits(body, head, x):
    z = torch.relu(x @ body[:30].view(6, 5).T + body[30:])
    return z @ head[:18].view(3, 6).T + head[18:]


def descend(vector, loss, lr=0.1):
    leaf = vector.clone().requires_grad_()
    return vector - lr * torch.autograd.grad(loss(leaf), leaf)[0]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def aggregated(body, own, received, weights, x, y, steps=1, eta=1.0):
    """Equations 3 and 4."""
    for _ in range(steps):
        weights = descend(weights, lambda w: F.cross_entropy(logits(body, own + (received - own) * w, x), y), lr=eta)
        weights = weights.clamp(0, 1)
    return own + (received - own) * weights, weights


@pytest.mark.parametrize(("sync_all", "join"), [(True, 1.0), (True, 0.5), (False, 0.5)])
def test_whole_rounds_by_hand(federation, sync_all, join):
    simulation = simulate(
        federation, FedAH(sync_all=sync_all, eta_w=8.0, w_epochs=2, head_epochs=2), join=join, rounds=5
    )
    net = simulation.server.net()
    body, head = net.body.vector, net.head.vector
    heads, weights = dict.fromkeys(range(4), head), dict.fromkeys(range(4), torch.ones_like(head))
    bodies = dict.fromkeys(range(4), body)
    data = [(c.train.x.double(), c.train.y) for c in federation.clients]

    def mix(i):
        heads[i], weights[i] = aggregated(body, heads[i], head, weights[i], *data[i], steps=2, eta=8.0)

    for _ in range(5):
        simulation.step()
        ups = {}
        for i in simulation.traffic.up:
            if not sync_all:
                mix(i)
            for _ in range(2):
                heads[i] = descend(
                    heads[i], lambda h, i=i, b=body: F.cross_entropy(logits(b, h, data[i][0]), data[i][1])
                )
            ups[i] = descend(body, lambda b, i=i: F.cross_entropy(logits(b, heads[i], data[i][0]), data[i][1]))
            close(simulation.traffic.up[i]["body"], ups[i])
            close(simulation.traffic.up[i]["head"], heads[i])
        total = sum(len(data[i][1]) for i in ups)
        body = sum(len(data[i][1]) / total * ups[i] for i in ups)
        head = sum(len(data[i][1]) / total * heads[i] for i in ups)
        close(simulation.server.state["body"], body)
        close(simulation.server.state["head"], head)
        for i, client in enumerate(federation.clients):
            if sync_all:
                mix(i)
            close(simulation.state(i)["head"], heads[i])
            close(simulation.state(i).get("weights", torch.ones_like(head)), weights[i])
            final = body, heads[i]
            if not sync_all and i in ups:  # as it would start from the new payload
                final = body, aggregated(body, heads[i], head, weights[i], *data[i], steps=2, eta=8.0)[0]
            elif not sync_all:  # it sat out and has what it had
                final = bodies[i], heads[i]
            x, y = client.test.x.double(), client.test.y
            assert simulation.scores[i].loss == pytest.approx(F.cross_entropy(logits(*final, x), y).item() * len(y))
        bodies |= ups
    assert any(0 < w < 1 for w in weights[0].tolist())


@pytest.mark.parametrize("sync_all", [True, False])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_a_weight_of_zero_is_fedrep_to_the_bit(federation, sync_all, join):
    mixing = simulate(federation, FedAH(fixed_w=0.0, sync_all=sync_all), **{**COARSE, "join": join}).run()
    plain = simulate(federation, FedRep(), **{**COARSE, "join": join}).run()
    assert torch.equal(mixing.server.state["body"], plain.server.state["body"])
    assert all(torch.equal(mixing.state(i)["head"], plain.state(i)["head"]) for i in range(4))
    evaluated = (
        range(4) if sync_all else plain.traffic.up
    )  # who sits out has its old body, FedRep's clients the new one
    assert all(mixing.scores[i] == plain.scores[i] for i in evaluated)


@dataclass(frozen=True)
class GlobalHead(FedRep):
    """FedRep that averages heads too and starts from the average."""

    down = ("body", "head")
    up = ("body", "head")

    def start(self, server, hellos):
        server.state.update(body=server.net().body.vector, head=server.net().head.vector)

    def send(self, server, client):
        return dict(server.state)

    def fit(self, client, payload):
        client.state["head"] = payload["head"]
        return {**super().fit(client, payload), "head": client.state["head"]}

    def aggregate(self, server, replies):
        super().aggregate(server, replies)
        server.state["head"] = weighted_mean(replies, "head")


@pytest.mark.parametrize("sync_all", [True, False])
def test_a_weight_of_one_is_fedrep_from_the_global_head_to_the_bit(federation, sync_all):
    mixing, plain = (
        simulate(federation, m, **COARSE, join=0.5).run() for m in (FedAH(fixed_w=1.0, sync_all=sync_all), GlobalHead())
    )
    assert torch.equal(mixing.server.state["body"], plain.server.state["body"])
    assert torch.equal(mixing.server.state["head"], plain.server.state["head"])


@pytest.mark.parametrize("options", [{"eta_w": 0.0}, {"w_epochs": 0}])
def test_weights_that_do_not_learn_stay_at_one(federation, options):
    still, one = (simulate(federation, m, **COARSE).run() for m in (FedAH(**options), FedAH(fixed_w=1.0)))
    assert torch.equal(still.server.state["body"], one.server.state["body"])


def test_weights_persist_and_stay_in_bounds_unless_told_otherwise(federation):
    bound = simulate(federation, FedAH(eta_w=500.0), rounds=6).run()
    free = simulate(federation, FedAH(eta_w=500.0, clamp=False), rounds=6).run()
    assert all(0 <= bound.state(i)["weights"].min() <= bound.state(i)["weights"].max() <= 1 for i in range(4))
    assert any(w < 0 or w > 1 for w in free.state(0)["weights"].tolist())
    simulation = simulate(federation, FedAH(), rounds=2)
    assert "weights" not in simulation.state(0)
    simulation.step()
    first = simulation.state(0)["weights"].mean()
    simulation.step()
    assert simulation.outcomes[0].logged["global_share"] == pytest.approx(first.item())


def test_in_the_first_round_there_is_nothing_to_mix(federation):
    mixing, plain = (simulate(federation, m, rounds=1).run() for m in (FedAH(), FedRep()))
    assert torch.equal(mixing.server.state["body"], plain.server.state["body"])
    assert mixing.outcomes[0].logged == {}


@pytest.mark.parametrize("settings", [{"eval_point": "after_train"}, {"eval_every": 3}, {"eval_every": 4}])
def test_training_does_not_depend_on_when_it_is_evaluated(federation, settings):
    usual, other = (simulate(federation, FedAH(), **COARSE, join=0.5, **s).run() for s in ({}, settings))
    assert torch.equal(usual.server.state["body"], other.server.state["body"])
    assert all(torch.equal(usual.state(i)["head"], other.state(i)["head"]) for i in range(4))


def test_only_participants_mix_if_told_so(federation):
    simulation = simulate(federation, FedAH(sync_all=False), join=0.25, rounds=5)
    before = {i: simulation.state(i)["head"].clone() for i in range(4)}
    for _ in simulation:
        for i in range(4):
            changed = not torch.equal(simulation.state(i)["head"], before[i])
            assert changed == (i in simulation.traffic.up)
            before[i] = simulation.state(i)["head"].clone()
    everyone = simulate(federation, FedAH(), join=0.25, rounds=1).run()
    assert all(not torch.equal(everyone.state(i)["head"], simulation.server.net().head.vector) for i in range(4))


def test_bodies_and_heads_travel_and_weights_do_not(federation):
    body, head = 36 * 8, 21 * 8
    simulation = simulate(federation, FedAH(), rounds=2, join=0.5).run()
    sent = {(e.client, e.direction, e.name, e.bytes) for e in simulation.ledger.last}
    down = {(i, "down", name, size) for i in range(4) for name, size in (("body", body), ("head", head))}
    up = {(i, "up", name, size) for i in simulation.traffic.up for name, size in (("body", body), ("head", head))}
    assert sent == down | up  # all are synced at the end of a round, so all receive
    partial = simulate(federation, FedAH(sync_all=False), rounds=2, join=0.5).run()
    assert {e.client for e in partial.ledger.last if e.direction == "down"} == set(partial.traffic.up)


def test_one_class_and_tiny_clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5)).astype(np.float32)
    labels = [np.zeros(6, int), np.array([1]), np.array([2, 1, 2])]
    federation = Federation.from_clients([(x[: len(y)], y, x[:0], y[:0]) for y in labels])
    for options in ({}, {"sync_all": False}):
        simulation = Simulation(federation, FedAH(**options), NET, rounds=3, join=0.4, lr=0.1).run()
        assert all(torch.isfinite(v).all() for i in range(3) for v in simulation.state(i).values())


@pytest.mark.parametrize("sync_all", [True, False])
def test_a_newcomer_starts_from_the_mixture_with_the_global_head(federation, sync_all):
    method = FedAH(fixed_w=1.0, sync_all=sync_all, head_epochs=0)
    simulation = simulate(federation, method, rounds=2).run()
    newcomer = simulation.worker._client(0, 0, "onboard")
    newcomer.state["head"] = torch.zeros(21, dtype=torch.float64)
    method.onboard(newcomer, method.send(simulation.server, 0))
    assert torch.equal(newcomer.state["head"], simulation.server.state["head"])
