"""FedPAC: two rounds by hand with a general solver for the mix of heads, and what it becomes with one participant."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods import fedpac
from fedtailor.methods.fedpac import FedPAC, head_weights
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def leaves(tensors):
    return [t.clone().requires_grad_() for t in tensors]


def stepped(tensors, loss, lr):
    return [(t - lr * g).detach() for t, g in zip(tensors, torch.autograd.grad(loss, tensors), strict=True)]


def mixing_matrices(h: np.ndarray, variance: np.ndarray) -> list[np.ndarray]:
    """diag(V) + D⁽ⁱ⁾ for each client, entry by entry."""
    k = len(h)
    return [
        np.diag(variance) + [[((h[i] - h[j]) * (h[i] - h[m])).sum() for m in range(k)] for j in range(k)]
        for i in range(k)
    ]


def solved(matrix: np.ndarray) -> np.ndarray:
    n, scale = len(matrix), matrix.max()
    result = minimize(
        lambda a: a @ matrix @ a / scale,
        np.full(n, 1 / n),
        jac=lambda a: 2 * matrix @ a / scale,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    kept = np.where(result.x < 1e-3, 0, result.x)
    return kept / kept.sum()


def reference_client(data, body, head, prototypes, lam, head_lr):
    """The statistics with the received body, a head step, a body step, and the class means after them."""
    x, y = data.x.double(), data.y
    n, classes = len(y), sorted(set(y.tolist()))
    z = torch.relu(x @ body[0].T + body[1])
    share = {c: (y == c).double().mean() for c in classes}
    means = {c: z[y == c].mean(0) for c in classes}
    h = torch.stack([share[c] * means[c] if c in means else torch.zeros(6).double() for c in range(3)])
    spread = sum(share[c] * z[y == c].square().sum(1).mean() - share[c] ** 2 * means[c].square().sum() for c in classes)
    head = leaves(head)
    head = stepped(head, F.cross_entropy(z @ head[0].T + head[1], y), head_lr)
    body = leaves(body)
    z = torch.relu(x @ body[0].T + body[1])
    loss = F.cross_entropy(z @ head[0].T + head[1], y)
    if prototypes:
        loss = loss + lam * F.mse_loss(z, torch.stack([prototypes.get(c, means[c]) for c in y.tolist()]))
    body = stepped(body, loss, 0.1)
    z = torch.relu(x @ body[0].T + body[1])
    return body, head, {c: z[y == c].mean(0) for c in classes}, h, spread / n


def check_rounds(federation: Federation, method: FedPAC, rounds: int, join: float = 1.0) -> bool:
    """Compare every vector of these rounds; true if a client had a class that there was no prototype of."""
    simulation = Simulation(federation, method, NET, rounds=rounds, join=join, **SETTINGS)
    net = simulation.server.net()
    initial = list(net.all.named(net.all.vector).values())
    everyone = range(len(federation.clients))
    body, heads, prototypes = initial[:2], [initial[2:] for _ in everyone], {}
    missed = False
    for _ in range(rounds):
        simulation.step()
        chosen = sorted(simulation.traffic.up)
        labels = {c for i in chosen for c in federation.clients[i].train.y.tolist()}
        missed |= bool(prototypes) and not labels <= set(prototypes)
        results = {
            i: reference_client(federation.clients[i].train, body, heads[i], prototypes, method.lam, method.head_lr)
            for i in chosen
        }
        for i, (own_body, own_head, means, h, variance) in results.items():
            up = simulation.traffic.up[i]
            sent = torch.stack([means.get(c, torch.zeros(6).double()) for c in range(3)])
            counts = torch.bincount(federation.clients[i].train.y, minlength=3).double()
            expected = {"body": flat(own_body), "head": flat(own_head), "means": sent, "counts": counts}
            for name, value in {**expected, "h": h, "variance": variance}.items():
                torch.testing.assert_close(up[name], value, rtol=0, atol=1e-10)
        sizes = {i: len(federation.clients[i].train) for i in chosen}
        body = [sum(sizes[i] * results[i][0][k] for i in chosen) / sum(sizes.values()) for k in (0, 1)]
        prototypes = {}
        for c in range(3):
            counts = {i: int((federation.clients[i].train.y == c).sum()) for i in chosen}
            if sum(counts.values()):
                having = [i for i in chosen if counts[i]]
                prototypes[c] = sum(counts[i] * results[i][2][c] for i in having) / sum(counts.values())
        matrices = mixing_matrices(
            np.stack([results[i][3].numpy() for i in chosen]), np.array([float(results[i][4]) for i in chosen])
        )
        new = {i: torch.from_numpy(solved(m)) for i, m in zip(chosen, matrices, strict=True)}
        for i, weights in new.items():
            heads[i] = [sum(a * results[j][1][k] for a, j in zip(weights, chosen, strict=True)) for k in (0, 1)]
            torch.testing.assert_close(simulation.server.state[f"head.{i}"], flat(heads[i]), rtol=0, atol=1e-6)
            heads[i] = list(
                net.head.named(simulation.server.state[f"head.{i}"]).values()
            )  # go on without the solver's error
        torch.testing.assert_close(simulation.server.state["body"], flat(body), rtol=0, atol=1e-10)
        assert simulation.server.state["known"].tolist() == [c in prototypes for c in range(3)]
        for c, prototype in prototypes.items():
            torch.testing.assert_close(simulation.server.state["prototypes"][c], prototype, rtol=0, atol=1e-10)
        for i in everyone:  # scored with the new body and the head last mixed for the client
            test = federation.clients[i].test
            logits = torch.relu(test.x.double() @ body[0].T + body[1]) @ heads[i][0].T + heads[i][1]
            loss = F.cross_entropy(logits, test.y, reduction="sum").item()
            assert simulation.scores[i].loss == pytest.approx(loss, abs=1e-8)
    return missed


def test_three_rounds_by_hand(federation):
    check_rounds(federation, FedPAC(lam=0.8, head_lr=0.3), 3)


def test_five_rounds_by_hand_with_absent_classes_and_absent_clients():
    rng = np.random.default_rng(1)
    parts = [
        (rng.normal(size=(len(y), 5)) + 1, np.array(y), rng.normal(size=(3, 5)), np.array([0, 1, 2]))
        for y in ([0, 0, 0, 1, 1], [1, 1, 1], [0, 1, 1, 0], [2], [2, 2, 0, 2])
    ]
    assert check_rounds(Federation.from_clients(parts), FedPAC(lam=1.5), 5, join=0.4)


def test_one_participant_without_pull_is_fedrep_to_the_bit(federation):
    settings = {**SETTINGS, "dtype": "float32", "batch": 4, "join": 0.25, "rounds": 6}
    pac = Simulation(federation, FedPAC(lam=0.0, head_lr=SETTINGS["lr"], head_epochs=2), NET, **settings).run()
    rep = Simulation(federation, FedRep(head_epochs=2), NET, **settings).run()
    assert torch.equal(pac.server.state["body"], rep.server.state["body"])
    met = [i for i in range(4) if f"head.{i}" in pac.server.state]
    assert len(met) > 1
    assert all(torch.equal(pac.server.state[f"head.{i}"], rep.state(i)["head"]) for i in met)
    assert [r["accuracy"] for r in pac.metrics] == [r["accuracy"] for r in rep.metrics]


def test_one_participant_keeps_its_own_head(federation):
    simulation = Simulation(federation, FedPAC(), NET, rounds=3, join=0.25, **SETTINGS)
    for _ in range(3):
        simulation.step()
        ((i, up),) = simulation.traffic.up.items()
        assert torch.equal(simulation.server.state[f"head.{i}"], up["head"])


def test_weights_solve_the_program_of_each_client():
    rng = np.random.default_rng(4)
    h, variance = rng.normal(size=(7, 3, 4)) * 0.5, rng.uniform(0.1, 2, size=7)
    found = head_weights(torch.from_numpy(h), torch.from_numpy(variance)).numpy()
    for row, matrix in zip(found, mixing_matrices(h, variance), strict=True):
        np.testing.assert_allclose(row, solved(matrix), atol=1e-6)


def test_clients_alike_share_by_certainty_and_strangers_do_not_share():
    alike = head_weights(torch.ones(3, 2, 2), torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(alike, torch.tensor([[4.0, 2.0, 1.0]] * 3, dtype=torch.float64) / 7)
    strangers = head_weights(torch.eye(3).view(3, 3, 1) * 1e3, torch.full((3,), 1e-3))
    assert torch.equal(strangers, torch.eye(3, dtype=torch.float64))


def test_statistics_that_are_not_numbers_leave_everyone_the_own_head():
    assert torch.equal(
        head_weights(torch.ones(2, 2, 2), torch.tensor([1.0, math.nan])), torch.eye(2, dtype=torch.float64)
    )


def test_a_variance_rounded_below_zero_is_zero():
    h = torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1)
    found = head_weights(h, torch.tensor([0.1, -1e-7, 0.1]))
    assert torch.equal(found, head_weights(h, torch.tensor([0.1, 0.0, 0.1])))
    assert found[1].tolist() == [0, 1, 0]


def test_negligible_weights_are_dropped_unless_all_are(monkeypatch):
    variance = torch.tensor([1.0, 2.0, 4.0])
    monkeypatch.setattr(fedpac, "NEGLIGIBLE", 0.2)
    assert head_weights(torch.ones(3, 2, 2), variance)[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    monkeypatch.setattr(fedpac, "NEGLIGIBLE", 0.7)
    assert head_weights(torch.ones(3, 2, 2), variance)[0].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_what_travels(federation):
    simulation = Simulation(federation, FedPAC(), NET, rounds=2, **SETTINGS)
    net = simulation.server.net()
    body, head, means = len(net.body) * 8, len(net.head) * 8, 3 * 6 * 8
    up = {("body", body), ("head", head), ("means", means), ("counts", 3 * 8), ("h", means), ("variance", 8)}
    for down in ({("body", body)}, {("body", body), ("head", head), ("prototypes", means), ("known", 3)}):
        simulation.step()
        assert {(e.name, e.bytes) for e in simulation.ledger.last if e.direction == "up"} == up
        assert {(e.name, e.bytes) for e in simulation.ledger.last if e.direction == "down"} == down
