"""FedROD: the balanced generic model, the personal head beside it, and the model that adds both."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedrod import FedROD
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def features(v, x):
    return torch.relu(x @ v[:30].view(6, 5).T + v[30:36])


def logits(head, z):
    return z @ head[:18].view(3, 6).T + head[18:]


def generic_step(w, x, y, prior):
    w = w.clone().requires_grad_()
    loss = F.cross_entropy(logits(w[36:], features(w, x)) + prior, y)
    return (w - 0.1 * torch.autograd.grad(loss, w)[0]).detach()


def own_step(own, w, x, y):
    own = own.clone().requires_grad_()
    loss = F.cross_entropy(logits(w[36:], features(w, x)) + logits(own, features(w, x)), y)
    return (own - 0.1 * torch.autograd.grad(loss, own)[0]).detach()


def labelled(labels: list[list[int]]) -> Federation:
    """Clients with these training labels, four test samples each."""
    rng = np.random.default_rng(1)

    def samples(y):
        return rng.normal(size=(len(y), 5)).astype(np.float32) + np.array(y)[:, None], np.array(y)

    return Federation.from_clients([(*samples(y), *samples([0, 1, 2, 2])) for y in labels])


def test_two_rounds_by_hand_with_classes_that_are_missing():
    federation = labelled([[0, 0, 0, 1, 2], [0, 1, 1, 1, 1, 1], [2, 2, 2]])
    simulation = Simulation(federation, FedROD(), NET, rounds=2, epochs=2, **SETTINGS)
    server = simulation.server.state["model"].clone()
    own = [server[36:].clone() for _ in range(3)]
    priors = [  # log n_c, and next to nothing for a class the client does not have
        torch.tensor(np.log([3, 1, 1])),
        torch.tensor(np.log([1, 5, 5 * np.exp(-20)])),
        torch.tensor(np.log([3 * np.exp(-20), 3 * np.exp(-20), 3])),
    ]
    sizes = [5, 6, 3]
    for _ in range(2):
        simulation.step()
        sent = []
        for i, client in enumerate(federation.clients):
            x, y, prior = client.train.x.double(), client.train.y, priors[i]
            w = server
            for _ in range(2):
                own[i], w = own_step(own[i], w, x, y), generic_step(w, x, y, prior)
            sent.append(w)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], w, rtol=0, atol=1e-12)
            torch.testing.assert_close(simulation.state(i)["own_head"], own[i], rtol=0, atol=1e-12)
        server = sum(n / sum(sizes) * v for n, v in zip(sizes, sent, strict=True))
        torch.testing.assert_close(simulation.server.state["model"], server, rtol=0, atol=1e-12)
    for i, client in enumerate(federation.clients):
        z = features(server, client.test.x.double())
        both = logits(server[36:], z) + logits(own[i], z)
        torch.testing.assert_close(simulation.personal(i)(client.test.x.double()), both, rtol=0, atol=1e-12)
        assert simulation.scores[i].correct == (both.argmax(1) == client.test.y).sum()


def test_with_balanced_labels_the_generic_model_is_fedavgs_to_the_bit():
    federation = labelled([[0, 1, 2] * 3, [0, 1, 2] * 2, [2, 1, 0] * 5])
    settings = {**SETTINGS, "dtype": "float32", "batch": 4, "rounds": 3, "join": 0.67}
    models = [Simulation(federation, m, NET, **settings).run().server.state["model"] for m in (FedROD(), FedAvg())]
    assert torch.equal(*models)


def test_the_generic_model_does_not_feel_the_personal_heads(federation):
    simulation = Simulation(federation, FedROD(), NET, rounds=2, **SETTINGS)
    simulation.step()
    other = Simulation(federation, FedROD(), NET, rounds=2, **SETTINGS)
    other.step()
    for i in range(4):
        other.state(i)["own_head"].mul_(-3)
    simulation.step()
    other.step()
    assert torch.equal(simulation.server.state["model"], other.server.state["model"])
    assert not torch.equal(simulation.state(0)["own_head"], other.state(0)["own_head"])


def test_an_absent_client_adds_its_old_head_to_the_new_model(federation):
    simulation = Simulation(federation, FedROD(), NET, rounds=3, join=0.25, **SETTINGS).run()
    w = simulation.server.state["model"]
    for i in set(range(4)) - set(simulation.traffic.up):
        x = federation.clients[i].test.x.double()
        expected = logits(w[36:], features(w, x)) + logits(simulation.state(i)["own_head"], features(w, x))
        torch.testing.assert_close(simulation.personal(i)(x), expected, rtol=0, atol=1e-12)


def test_the_exported_model_is_independent_and_names_both_heads(federation):
    simulation = Simulation(federation, FedROD(), NET, rounds=1, **SETTINGS).run()
    model, other = simulation.personal(0), simulation.personal(1)
    assert list(model.state_dict()) == [
        "hidden.0.weight",
        "hidden.0.bias",
        "fc.generic.weight",
        "fc.generic.bias",
        "fc.personal.weight",
        "fc.personal.bias",
    ]
    assert not torch.equal(model.fc.personal.weight, other.fc.personal.weight)
    before, state = simulation.server.state["model"].clone(), simulation.state(0)["own_head"].clone()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    simulation.personal(1)
    assert torch.equal(simulation.server.state["model"], before)
    assert torch.equal(simulation.state(0)["own_head"], state)
    assert all(p.abs().sum() == 0 for p in model.parameters())
    assert simulation.personal(0).fc.generic.weight.abs().sum() > 0


def test_a_net_with_batchnorm_exports_no_more_memory_than_it_needs(federation):
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    model = Simulation(federation, FedROD(), net, rounds=1, batch=4).run().personal(2)
    assert {"1.running_mean", "3.generic.weight", "3.personal.bias"} <= set(model.state_dict())
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in model.state_dict().values())


def test_personal_heads_and_label_counts_stay_at_home(federation):
    simulation = Simulation(federation, FedROD(), NET, rounds=2, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", 57 * 8),
        ("down", "model", 57 * 8),
    }
