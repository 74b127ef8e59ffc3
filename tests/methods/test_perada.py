"""PerAda: one whole round by hand, what travels, what the server needs, and its kinship with Ditto and FedAvg."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.data.client_data import Split
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.finetune import FedAvgPer, FedProxPer
from fedtailor.methods.perada import PerAda
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
LR = 0.1


@pytest.fixture
def proxied(federation: Federation) -> Federation:
    """The small federation with samples at its server, classes in other shares than anywhere else."""
    rng = np.random.default_rng(11)
    x = torch.from_numpy(rng.normal(size=(15, 5)).astype(np.float32) * 2)
    return dataclasses.replace(federation, server=Split(x, torch.arange(15) % 3))


def simulate(federation: Federation, method, **settings) -> Simulation:
    fixed = {"dtype": "float64", "batch": 1000, "lr": LR, "rounds": 2, "epochs": 2, "seed": 3}
    return Simulation(federation, method, NET, **{**fixed, **settings})


def logits(weights, x):
    w1, b1, w2, b2 = weights
    return torch.relu(x @ w1.T + b1) @ w2.T + b2


def unpacked(simulation, vector):
    return [t.clone().requires_grad_() for t in simulation.server.net().all.named(vector).values()]


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def descend(simulation, vector, x, y, centre=None, lam=0.0, steps=2):
    """Full-batch SGD on CE + λ‖v − w‖²."""
    for _ in range(steps):
        v = unpacked(simulation, vector)
        loss = F.cross_entropy(logits(v, x), y)
        if centre is not None:
            loss = loss + lam * (flat(v) - centre).square().sum()
        vector = vector - LR * flat(torch.autograd.grad(loss, v))
    return vector


def distilled(simulation, mean, uploads, x, y, steps, lr, accept):
    """Adam on KL(p̄‖p_w), p̄ of the mean logits of the uploads; the best step on (x, y)."""
    target = (sum(logits(unpacked(simulation, u), x) for u in uploads) / len(uploads)).detach().softmax(1)

    def accuracy(w):
        return (logits(unpacked(simulation, w), x).argmax(1) == y).double().mean().item()

    w, m, v, seen = mean, 0, 0, []
    for k in range(steps):
        tensors = unpacked(simulation, w)
        loss = (target * (target.log() - logits(tensors, x).log_softmax(1))).sum(1).mean()
        g = flat(torch.autograd.grad(loss, tensors))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = lr * 0.5 * (1 + math.cos(math.pi * k / steps))
        w = w - rate * (m / (1 - 0.9 ** (k + 1))) / ((v / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
        seen.append(w)
    marks = [accuracy(w) for w in seen]
    best = seen[marks.index(max(marks))]
    if accept == "val_better" and max(marks) <= accuracy(mean):
        return mean
    return seen[-1] if accept == "last" else best


@pytest.mark.parametrize("accept", ["always", "val_better", "last"])
def test_two_rounds_by_hand(proxied, accept):
    method = PerAda(lam=0.3, akt_steps=4, akt_lr=0.05, kd_accept=accept)
    simulation = simulate(proxied, method)
    w = simulation.server.state["model"].clone()
    own = dict.fromkeys(range(4), w)
    proxy_x, proxy_y = proxied.server.x.double(), proxied.server.y
    for _ in range(2):
        simulation.step()
        uploads = []
        for i, client in enumerate(proxied.clients):
            x, y = client.train.x.double(), client.train.y
            own[i] = descend(simulation, own[i], x, y, centre=w, lam=0.3)
            uploads.append(descend(simulation, w, x, y))
            torch.testing.assert_close(simulation.state(i)["personal"], own[i], rtol=0, atol=1e-9)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], uploads[i], rtol=0, atol=1e-9)
        w = distilled(simulation, sum(uploads) / 4, uploads, proxy_x, proxy_y, 4, 0.05, accept)
        torch.testing.assert_close(simulation.server.state["model"], w, rtol=0, atol=1e-8)


def test_only_the_local_model_travels_and_the_personal_one_never_does(proxied):
    simulation = simulate(proxied, PerAda(akt_steps=2)).run()
    size = len(simulation.server.net().all) * 8
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", size),
        ("down", "model", size),
    }
    assert len(simulation.ledger.last) == 8
    for i, up in simulation.traffic.up.items():
        assert set(simulation.state(i)) == {"personal"}
        assert not torch.equal(up["model"], simulation.state(i)["personal"])


def test_without_transfer_it_is_ditto_with_twice_the_pull_and_an_unweighted_mean(proxied):
    settings = {"batch": 4, "dtype": "float32", "rounds": 1}
    ada = simulate(proxied, PerAda(lam=0.25, akt=False), **settings).run()
    ditto = simulate(proxied, Ditto(lam=0.5, personal_epochs=2), **settings).run()
    for i in range(4):
        assert torch.equal(ada.state(i)["personal"], ditto.state(i)["personal"])
        assert torch.equal(ada.traffic.up[i]["model"], ditto.traffic.up[i]["model"])
    mean = sum(up["model"] for up in ada.traffic.up.values()) / 4
    torch.testing.assert_close(ada.server.state["model"], mean)
    assert not torch.allclose(ada.server.state["model"], ditto.server.state["model"])


def test_the_transfer_takes_place_in_the_first_rounds_only(proxied):
    simulation = simulate(proxied, PerAda(akt_steps=2, akt_rounds=1))
    first, second = simulation.step(), simulation.step()
    assert {"akt_loss", "akt_accuracy_before", "akt_accuracy_after"} <= set(first)
    assert not any(key.startswith("akt") for key in second)
    mean = sum(up["model"] for up in simulation.traffic.up.values()) / 4
    torch.testing.assert_close(simulation.server.state["model"], mean)


def test_a_client_that_did_not_take_part_keeps_its_model(proxied):
    simulation = simulate(proxied, PerAda(akt_steps=1), join=0.25)
    initial = simulation.server.state["model"].clone()
    simulation.step()
    absent = next(i for i in range(4) if i not in simulation.traffic.up)
    assert torch.equal(simulation.state(absent)["personal"], initial)
    x = proxied.clients[absent].test.x.double()
    torch.testing.assert_close(simulation.personal(absent)(x), logits(unpacked(simulation, initial), x))


def test_one_uploader_is_the_mean_and_the_only_teacher(proxied):
    simulation = simulate(proxied, PerAda(akt_steps=1, kd_accept="last"), join=0.25)
    simulation.step()
    (up,) = simulation.traffic.up.values()  # teacher and student agree: there is nothing to learn
    torch.testing.assert_close(simulation.server.state["model"], up["model"], rtol=0, atol=1e-9)
    assert simulation.metrics[0]["akt_loss"] == pytest.approx(0, abs=1e-12)


def test_a_server_without_samples_is_told_what_to_do(federation):
    with pytest.raises(FedTailorError, match=r"partition=paired.*data.proxy=NAME.*method.akt=false"):
        simulate(federation, PerAda())
    simulate(federation, PerAda(akt=False)).step()


@pytest.mark.parametrize("method", [FedAvgPer(), FedProxPer()])
def test_the_per_baselines_fine_tune_for_ten_epochs(federation, method):
    simulation = simulate(federation, method, rounds=1, epochs=1).run()
    assert [r["phase"] for r in simulation.metrics] == ["round"] + ["finish"] * 10
    w = simulation.server.state["model"]
    for i, client in enumerate(federation.clients):
        expected = descend(simulation, w, client.train.x.double(), client.train.y, steps=10)
        torch.testing.assert_close(simulation.state(i)["personal"], expected, rtol=0, atol=1e-10)
