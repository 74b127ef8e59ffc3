"""FedAS: alignment on a copy, Fisher traces by hand, and models that the server's answer does not touch."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedtailor import Simulation
from fedtailor.learning import Reply
from fedtailor.methods.fedas import FedAS
from fedtailor.methods.fedper import FedPer
from fedtailor.nets.mlp import MLP
from fedtailor.randomness import torch_stream

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def body(tensors, x):
    return torch.relu(x @ tensors[0].T + tensors[1])


def leaves(tensors):
    return [t.clone().requires_grad_() for t in tensors]


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def gradient(tensors, x, y):
    """Of the mean negative log-likelihood, by tensor."""
    model = leaves(tensors)
    logits = body(model, x) @ model[2].T + model[3]
    return torch.autograd.grad(-logits.log_softmax(1)[range(len(y)), y].mean(), model)


def reference_client(data, shared, own, align_lr):
    """Prototypes of the own body, one alignment step, one training step, and the Fisher trace, all with full batches."""
    x, y = data.x.double(), data.y
    z = body(own, x)
    means = {c: z[y == c].mean(0) for c in set(y.tolist())}
    base = leaves(shared)
    z = body(base, x)
    loss = sum(F.mse_loss(z[y == c], mean.expand(int((y == c).sum()), -1)) for c, mean in means.items())
    base = [t - align_lr * g for t, g in zip(base, torch.autograd.grad(loss, base), strict=True)]
    model = [t.detach() for t in (*base, *own[2:])]
    model = [t - 0.1 * g for t, g in zip(model, gradient(model, x, y), strict=True)]
    return model, sum(g.square().sum() for g in gradient(model, x, y))


def test_two_rounds_by_hand(federation):
    simulation = Simulation(federation, FedAS(align_lr=0.2, align_batch=1000), NET, rounds=2, **SETTINGS)
    net = simulation.server.net()
    initial = list(net.all.named(net.all.vector).values())
    shared, models = initial[:2], [initial] * 4
    for _ in range(2):
        simulation.step()
        fishers = []
        for i, client in enumerate(federation.clients):
            models[i], fisher = reference_client(client.train, shared, models[i], 0.2)
            fishers.append(fisher)
            torch.testing.assert_close(simulation.state(i)["model"], flat(models[i]), rtol=0, atol=1e-10)
            torch.testing.assert_close(simulation.traffic.up[i]["body"], flat(models[i][:2]), rtol=0, atol=1e-10)
            torch.testing.assert_close(simulation.traffic.up[i]["fisher"], fisher, rtol=0, atol=1e-10)
        total = sum(fishers)
        shared = [sum(f / total * m[k] for f, m in zip(fishers, models, strict=True)) for k in (0, 1)]
        torch.testing.assert_close(simulation.server.state["body"], flat(shared), rtol=0, atol=1e-10)


def test_the_fisher_trace_sums_over_batches(federation):
    settings = {**SETTINGS, "batch": 6, "lr": 1e-300}  # steps too small to move anything
    simulation = Simulation(federation, FedAS(align_epochs=0), NET, rounds=1, **settings).run()
    net = simulation.server.net()
    tensors = net.all.named(net.all.vector).values()
    x, y = federation.clients[0].train.x.double(), federation.clients[0].train.y
    order = torch.randperm(12, generator=torch_stream(3, "fit", 1, 0, "fisher"))
    gradients = [flat(gradient(tensors, x[half], y[half])) for half in (order[:6], order[6:])]
    expected = sum(g.square().sum() for g in gradients)
    torch.testing.assert_close(simulation.traffic.up[0]["fisher"], expected, rtol=1e-9, atol=0)


def test_alignment_has_a_batch_size_of_its_own(federation):
    settings = {**SETTINGS, "epochs": 0}
    simulation = Simulation(federation, FedAS(align_lr=0.2, align_batch=6), NET, rounds=1, **settings).run()
    x, y = federation.clients[0].train.x.double(), federation.clients[0].train.y
    shared = simulation.server.net().body
    base = list(shared.named(shared.vector).values())
    means = [body(base, x[y == c]).mean(0) for c in range(3)]
    order = torch.randperm(12, generator=torch_stream(3, "fit", 1, 0, "align"))
    for half in (order[:6], order[6:]):
        base = leaves(base)
        z, labels = body(base, x[half]), y[half]
        loss = sum((z[labels == c] - means[c]).square().mean() for c in labels.unique())
        base = [(t - 0.2 * g).detach() for t, g in zip(base, torch.autograd.grad(loss, base), strict=True)]
    torch.testing.assert_close(simulation.traffic.up[0]["body"], flat(base), rtol=0, atol=1e-10)


def test_alignment_does_not_leak_from_client_to_client(federation):
    everyone = Simulation(federation, FedAS(align_lr=0.5), NET, rounds=1, **SETTINGS)
    sent = everyone.server.state["body"]
    before = sent.clone()
    everyone.step()
    assert torch.equal(sent, before)
    assert all(torch.equal(down["body"], before) for down in everyone.traffic.down.values())
    few = Simulation(federation, FedAS(align_lr=0.5), NET, rounds=1, join=0.5, **SETTINGS).run()
    assert len(few.traffic.up) == 2
    for i, up in few.traffic.up.items():
        assert torch.equal(up["body"], everyone.traffic.up[i]["body"])


def test_without_alignment_and_with_one_participant_it_is_fedper_to_the_bit(federation):
    settings = {**SETTINGS, "dtype": "float32", "batch": 4, "join": 0.25}
    ours, fedper = (
        Simulation(federation, m, NET, rounds=5, **settings).run() for m in (FedAS(align_epochs=0), FedPer())
    )
    assert torch.equal(ours.server.state["body"], fedper.server.state["body"])
    size = len(ours.server.net().head)
    assert all(torch.equal(ours.state(i)["model"][-size:], fedper.state(i)["head"]) for i in range(4))
    aligned = Simulation(federation, FedAS(), NET, rounds=5, **settings).run()
    assert not torch.equal(aligned.server.state["body"], fedper.server.state["body"])


@pytest.mark.parametrize("point", ["method", "after_sync"])
def test_everyone_is_scored_with_the_own_model_whatever_the_server_sends(federation, point):
    simulation = Simulation(federation, FedAS(), NET, rounds=3, join=0.5, eval_point=point, **SETTINGS)
    for _ in range(3):
        kept = {i: simulation.state(i)["model"].clone() for i in range(4)}
        simulation.step()
        for i, client in enumerate(federation.clients):
            own = simulation.state(i)["model"]
            assert torch.equal(own, kept[i]) is (i not in simulation.traffic.up)
            logits = simulation.server.net(model=own)(client.test.x.double())
            loss = F.cross_entropy(logits, client.test.y, reduction="sum").item()
            assert simulation.scores[i].loss == pytest.approx(loss, abs=1e-10)


@pytest.mark.parametrize("fishers", [(0.0, 0.0), (1.0, math.nan), (math.inf, 1.0)])
def test_useless_fisher_traces_give_way_to_samples(federation, fishers):
    simulation = Simulation(federation, FedAS(), NET, rounds=1, **SETTINGS)
    bodies = [torch.full_like(simulation.server.state["body"], v) for v in (1.0, 5.0)]
    simulation.method.aggregate(
        simulation.server,
        [Reply(i, n, {"body": bodies[i], "fisher": torch.tensor(fishers[i])}) for i, n in enumerate((3, 1))],
    )
    torch.testing.assert_close(simulation.server.state["body"], torch.full_like(bodies[0], 2.0))


def test_only_the_body_and_one_number_travel(federation):
    simulation = Simulation(federation, FedAS(), NET, rounds=2, **SETTINGS).run()
    size = len(simulation.server.net().body) * 8
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("down", "body", size),
        ("up", "body", size),
        ("up", "fisher", 8),
    }
