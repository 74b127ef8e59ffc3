"""FedAMP against its equations in plain loops."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.learning import mixing
from fedtailor.methods.fedamp import FedAMP
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
LR = 0.1
FULL = {"dtype": "float64", "batch": 1000, "lr": LR, "seed": 3}
SMALL = {"batch": 4, "lr": LR, "seed": 3}


def attention_by_hand(models, alpha, sigma):
    n = len(models)
    if sigma is None:
        pairs = [float((models[i] - models[j]).square().sum()) for i in range(n) for j in range(n) if i != j]
        sigma = statistics.median_low(pairs)
    xi = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            if i != j:
                xi[i][j] = alpha * math.exp(-float((models[i] - models[j]).square().sum()) / sigma) / sigma
        others = sum(xi[i])
        if others > 1:
            xi[i] = [x / others for x in xi[i]]
        xi[i][i] = 1 - min(others, 1.0)
    return torch.tensor(xi, dtype=torch.float64)


def train_by_hand(simulation, start, cloud, strength, data, steps):
    """Full-batch descent on CE + strength/2·‖w − u‖², on tensors unpacked from the vector."""
    part = simulation.server.net().all
    w = start
    for _ in range(steps):
        w = w.detach().requires_grad_()
        w1, b1, w2, b2 = part.named(w).values()
        loss = F.cross_entropy(torch.relu(data.x.double() @ w1.T + b1) @ w2.T + b2, data.y)
        if cloud is not None:
            loss = loss + strength / 2 * (w - cloud).square().sum()
        w = w - LR * torch.autograd.grad(loss, w)[0]
    return w.detach()


@pytest.mark.parametrize(
    "method",
    [
        FedAMP(),
        FedAMP(alpha_k=0.02, sigma=0.3, lam=0.05, start_from="own"),  # rows below 1: something is left for the diagonal
        FedAMP(alpha_k=2.0, lam=3.0, start_from="own"),
    ],
)
def test_three_rounds_by_hand(federation, method):
    simulation = Simulation(federation, method, NET, rounds=3, epochs=2, **FULL)
    models = [simulation.server.net().all.vector] * 4
    clouds = [None] * 4
    for t in (1, 2, 3):
        simulation.step()
        for i, client in enumerate(federation.clients):
            if t == 1:
                assert simulation.traffic.down[i] == {}
            else:
                torch.testing.assert_close(simulation.traffic.down[i]["cloud"], clouds[i], rtol=0, atol=1e-11)
            start = clouds[i] if t > 1 and method.start_from == "cloud" else models[i]
            strength = method.lam / method.alpha_k
            models[i] = train_by_hand(simulation, start, clouds[i], strength, client.train, steps=2)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], models[i], rtol=0, atol=1e-11)
            torch.testing.assert_close(simulation.state(i)["model"], models[i], rtol=0, atol=1e-11)
        clouds = attention_by_hand(models, method.alpha_k, method.sigma) @ torch.stack(models)
    if method.sigma:
        assert 0 < simulation.metrics[-1]["attention"] < 1


def test_attention_rows_are_weights():
    distances = torch.rand(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distances = (distances + distances.T).fill_diagonal_(0)
    for alpha in (1e-4, 0.05, 1.0, 1e6):
        xi = FedAMP(alpha_k=alpha).attention(distances)
        assert (xi >= 0).all()
        torch.testing.assert_close(xi.sum(1), torch.ones(9, dtype=torch.float64))
        order = distances[0, 1:].argsort()
        assert torch.equal(xi[0, 1:].argsort(descending=True), order)  # the closer, the more it counts


def test_attention_of_one_and_of_equal_models_and_of_far_ones():
    assert FedAMP().attention(torch.zeros(1, 1)).tolist() == [[1.0]]
    equal = FedAMP().attention(torch.zeros(3, 3, dtype=torch.float64))
    torch.testing.assert_close(equal, (torch.ones(3, 3) - torch.eye(3)).double() / 2)
    far = FedAMP(sigma=1e-3).attention(torch.full((3, 3), 1e9, dtype=torch.float64).fill_diagonal_(0))
    assert torch.equal(far, torch.eye(3, dtype=torch.float64))  # nobody near: each its own cloud


def test_with_the_published_defect_it_is_local_to_the_bit(federation):
    runs = [Simulation(federation, m, NET, rounds=4, **SMALL).run() for m in (FedAMP(pfllib_bug=True), Local())]
    assert all(torch.equal(runs[0].state(i)["model"], runs[1].state(i)["model"]) for i in range(4))
    assert runs[0].traffic.down[0]["cloud"].numel() > 0  # it was sent all the same


@pytest.mark.parametrize("start", ["cloud", "own"])
def test_without_the_defect_it_is_not_local(federation, start):
    runs = [
        Simulation(federation, m, NET, rounds=2, **FULL).run() for m in (FedAMP(start_from=start, lam=500), Local())
    ]
    assert all((runs[0].state(i)["model"] - runs[1].state(i)["model"]).norm() > 1e-3 for i in range(4))


def test_the_first_round_is_local_to_the_bit(federation):
    runs = [Simulation(federation, m, NET, rounds=1, **SMALL).run() for m in (FedAMP(), Local())]
    assert all(torch.equal(runs[0].state(i)["model"], runs[1].state(i)["model"]) for i in range(4))


def test_who_was_never_met_has_no_cloud_and_counts_in_none(federation):
    simulation = Simulation(federation, FedAMP(), NET, rounds=8, join=0.25, **FULL)
    simulation.step()
    (first,) = simulation.traffic.up
    torch.testing.assert_close(simulation._send(first)["cloud"], simulation.traffic.up[first]["model"])  # alone: itself
    assert all(simulation._send(i) == {} for i in range(4) if i != first)
    initial = simulation.server.net().all.vector
    while int(simulation.server.state["met"].sum()) < 2:
        simulation.step()
    a, b = simulation.server.state["met"].nonzero()[:, 0].tolist()
    # two attract each other fully, so each one's cloud is the other's model, without a trace of the initial one
    torch.testing.assert_close(simulation._send(a)["cloud"], simulation.state(b)["model"])
    unmet = next(i for i in range(4) if i not in (a, b))
    assert torch.equal(simulation.state(unmet)["model"], initial)
    assert simulation.method.welcome(simulation.server, {}) == {}


def test_clouds_of_many_columns_are_mixed_block_by_block(federation, monkeypatch):
    whole = Simulation(federation, FedAMP(), NET, rounds=3, join=0.75, **FULL).run()
    monkeypatch.setattr(mixing, "BLOCK", 7)
    blocks = Simulation(federation, FedAMP(), NET, rounds=3, join=0.75, **FULL).run()
    assert blocks.server.state["clouds"].shape[1] % 7
    torch.testing.assert_close(blocks.server.state["clouds"], whole.server.state["clouds"], rtol=0, atol=1e-12)


def test_what_travels(federation):
    simulation = Simulation(federation, FedAMP(), NET, rounds=2, **FULL)
    size = len(simulation.server.net().all) * 8
    simulation.step()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {("up", "model", size)}
    simulation.step()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", size),
        ("down", "cloud", size),
    }
    assert len(simulation.ledger.last) == 8


def test_tiny_and_one_sided_clients(caplog):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    none = (x[:0], np.zeros(0, int))
    federation = Federation.from_clients([(x[:1], [0], *none), (x[1:5], [1] * 4, *none), (x[5:], [0, 1, 2, 2], *none)])
    simulation = Simulation(federation, FedAMP(), NET, rounds=4, batch=3, lr=0.1).run()
    assert all(torch.isfinite(t).all() for t in simulation.server.state.values())
    assert not caplog.records
