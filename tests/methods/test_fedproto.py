"""FedProto and its fine-tuned kin: prototypes by hand, the pull to them, and prediction by the nearest one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.fedproto import FedProto, FedProtoPer, NearestPrototype
from fedtailor.methods.finetune import FedAvgFT
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
SMALL = {**SETTINGS, "dtype": "float32", "batch": 4}


@pytest.fixture
def lopsided() -> Federation:
    """Three classes, of which clients have one or two."""
    rng = np.random.default_rng(1)
    return Federation.from_clients(
        [
            (
                rng.normal(size=(len(y), 5)).astype(np.float32) + 1,
                np.array(y),
                rng.normal(size=(4, 5)),
                np.array([0, 1, 2, 2]),
            )
            for y in ([0, 0, 0, 1, 1], [1, 1, 1], [0, 1, 1, 0], [2])
        ]
    )


def features(tensors, x):
    return torch.relu(x @ tensors[0].T + tensors[1])


def reference_step(simulation: Simulation, vector: torch.Tensor, client: int, prototypes: dict, lam: float):
    """One full-batch step on CE + λ·MSE by hand; the new vector and the class means after it."""
    tensors = [t.clone().requires_grad_() for t in simulation.server.net().all.named(vector).values()]
    data = simulation.federation.clients[client].train
    x = data.x.double()
    z = features(tensors, x)
    loss = F.cross_entropy(z @ tensors[2].T + tensors[3], data.y)
    targets = torch.stack([prototypes.get(c.item(), z[k].detach()) for k, c in enumerate(data.y)])
    loss = loss + lam * F.mse_loss(z, targets)
    stepped = [(t - 0.1 * g).detach() for t, g in zip(tensors, torch.autograd.grad(loss, tensors), strict=True)]
    z = features(stepped, x)
    means = {c: z[data.y == c].mean(0) for c in set(data.y.tolist())}
    return torch.cat([t.reshape(-1) for t in stepped]), means


def averaged(means: list[dict], federation: Federation, weighted: bool) -> dict:
    prototypes = {}
    for c in range(3):
        having = [i for i in range(len(means)) if c in means[i]]
        sizes = {i: int((federation.clients[i].train.y == c).sum()) if weighted else 1 for i in having}
        if having:
            prototypes[c] = sum(sizes[i] * means[i][c] for i in having) / sum(sizes.values())
    return prototypes


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("which", ["federation", "lopsided"])
def test_two_rounds_by_hand(which, weighted, request):
    federation = request.getfixturevalue(which)
    simulation = Simulation(federation, FedProto(lam=0.7, weighted=weighted), NET, rounds=2, **SETTINGS)
    models = [simulation.state(i)["model"] for i in range(4)]
    prototypes: dict = {}
    for _ in range(2):
        simulation.step()
        steps = [reference_step(simulation, models[i], i, prototypes, 0.7) for i in range(4)]
        models, means = [m for m, _ in steps], [p for _, p in steps]
        prototypes = averaged(means, federation, weighted)
        for i in range(4):
            torch.testing.assert_close(simulation.state(i)["model"], models[i], rtol=0, atol=1e-10)
            sent = simulation.traffic.up[i]
            sizes = torch.bincount(federation.clients[i].train.y, minlength=3)
            assert sent["counts"].tolist() == (sizes if weighted else sizes.clamp(max=1)).tolist()
            for c, mean in means[i].items():
                torch.testing.assert_close(sent["means"][c], mean, rtol=0, atol=1e-10)
        assert simulation.server.state["known"].tolist() == [c in prototypes for c in range(3)]
        for c, prototype in prototypes.items():
            torch.testing.assert_close(simulation.server.state["prototypes"][c], prototype, rtol=0, atol=1e-10)


def test_without_pull_it_is_training_alone_to_the_bit(federation):
    drawn, alone = (Simulation(federation, m, NET, rounds=3, **SMALL).run() for m in (FedProto(lam=0.0), Local()))
    assert all(torch.equal(drawn.state(i)["model"], alone.state(i)["model"]) for i in range(4))
    assert [r["accuracy"] for r in drawn.metrics] == [r["accuracy"] for r in alone.metrics]


def test_the_pull_starts_when_there_are_prototypes(federation):
    drawn, alone = (Simulation(federation, m, NET, rounds=2, **SMALL) for m in (FedProto(), Local()))
    for same in (True, False):
        drawn.step()
        alone.step()
        assert torch.equal(drawn.state(0)["model"], alone.state(0)["model"]) is same


def test_prediction_by_the_nearest_prototype(lopsided):
    simulation = Simulation(lopsided, FedProto(eval="proto"), NET, rounds=4, join=0.5, **SETTINGS)
    unknown = 0
    for _ in range(4):
        simulation.step()
        unknown += int((~simulation.server.state["known"]).sum())
        known, prototypes = simulation.server.state["known"], simulation.server.state["prototypes"]
        for i, client in enumerate(lopsided.clients):
            tensors = list(simulation.server.net().all.named(simulation.state(i)["model"]).values())
            z = features(tensors, client.test.x.double())
            far = torch.stack([(z - p).square().sum(1) for p in prototypes], dim=1)
            nearest = torch.where(known, far, math.inf).argmin(1)
            assert simulation.scores[i].correct == (nearest == client.test.y).sum()
            assert math.isfinite(simulation.scores[i].loss)
            logits = simulation.personal(i)(client.test.x.double())
            torch.testing.assert_close(logits[:, known], -far[:, known])
            assert (logits[:, ~known] < logits[:, known].amin(1, keepdim=True)).all()
    assert unknown


def test_a_nearest_prototype_model_is_independent_and_can_be_stored(federation):
    simulation = Simulation(federation, FedProto(eval="proto"), NET, rounds=2, **SETTINGS)
    assert not isinstance(simulation.personal(0), NearestPrototype)  # no prototypes yet: its own head
    simulation.step()
    model, x = simulation.personal(0), federation.clients[0].test.x.double()
    before = model(x)
    assert set(model.state_dict()) == {"embedder.hidden.0.weight", "embedder.hidden.0.bias", "prototypes", "known"}
    simulation.step()
    assert torch.equal(model(x), before)
    assert not torch.equal(simulation.personal(0)(x), before)


def test_only_class_means_and_presence_travel(federation):
    simulation = Simulation(federation, FedProto(), NET, rounds=2, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "means", 3 * 6 * 8),
        ("up", "counts", 3 * 8),
        ("down", "prototypes", 3 * 6 * 8),
        ("down", "known", 3),
    }
    first = Simulation(federation, FedProto(), NET, rounds=1, **SETTINGS).run()
    assert first.metrics[0]["bytes_down"] == 0


def test_two_rounds_of_the_fine_tuned_kin_by_hand(federation):
    simulation = Simulation(federation, FedProtoPer(lam=0.7, ft_epochs=2), NET, rounds=2, **SETTINGS)
    model, prototypes, sizes = simulation.server.state["model"].clone(), {}, [len(c.train) for c in federation.clients]
    for _ in range(2):
        simulation.step()
        steps = [reference_step(simulation, model, i, prototypes, 0.7) for i in range(4)]
        model = sum(n / sum(sizes) * m for n, (m, _) in zip(sizes, steps, strict=True))
        prototypes = averaged([p for _, p in steps], federation, False)
        torch.testing.assert_close(simulation.server.state["model"], model, rtol=0, atol=1e-10)
        torch.testing.assert_close(
            simulation.server.state["prototypes"], torch.stack([prototypes[c] for c in range(3)]), rtol=0, atol=1e-10
        )
    body_and_head, prototype = len(simulation.server.net().all) * 8, 3 * 6 * 8
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", body_and_head),
        ("up", "means", prototype),
        ("up", "counts", 3 * 8),
        ("down", "model", body_and_head),
        ("down", "prototypes", prototype),
        ("down", "known", 3),
    }
    simulation.run()
    for i in range(4):
        tuned = model
        for _ in range(2):
            tuned, _ = reference_step(simulation, tuned, i, {}, 0.0)
        torch.testing.assert_close(simulation.state(i)["personal"], tuned, rtol=0, atol=1e-10)


def test_the_fine_tuned_kin_without_pull_is_fine_tuned_fedavg_to_the_bit(federation):
    assert FedProtoPer().closing_steps == 10
    drawn, plain = (
        Simulation(federation, m, NET, rounds=3, **SMALL).run() for m in (FedProtoPer(lam=0.0), FedAvgFT(ft_epochs=10))
    )
    assert all(torch.equal(drawn.state(i)["personal"], plain.state(i)["personal"]) for i in range(4))
