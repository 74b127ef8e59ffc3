"""pFedFDA: whole rounds by hand, the fit of β, and what travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.learning.discriminant import Gaussian
from fedtailor.methods.pfedfda import PFedFDA
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.01, "seed": 3}
EPS = 1e-4


def rule(means: torch.Tensor, covariance: torch.Tensor, priors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Discriminant analysis class by class, with an explicit inverse."""
    d = len(covariance)
    inverse = torch.linalg.inv((1 - EPS) * covariance + EPS * covariance.trace() / d * torch.eye(d).double())
    weight = torch.stack([inverse @ m for m in means])
    bias = torch.stack([-0.5 * m @ inverse @ m + torch.log(q) for m, q in zip(means, priors, strict=True)])
    return weight, bias


def estimate(
    z: torch.Tensor, y: torch.Tensor, shared: torch.Tensor, identity: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    means = torch.stack([z[y == c].mean(0) if (y == c).any() else shared[c] for c in range(3)])
    scatter = sum(torch.outer(r, r) for r in z - means[y])
    return means, scatter / max(len(y) - 1, 1) + (EPS + identity) * torch.eye(z.shape[1]).double()


def smoothed(y: torch.Tensor) -> torch.Tensor:
    shares = torch.tensor([(y == c).double().mean() for c in range(3)]).double() + EPS
    return shares / shares.sum()


def cross_validated(z, y, shared, priors, identity):
    """The sum of both folds' losses as a function of β, all by hand."""
    keep = torch.tensor([(y == c).sum() >= 2 for c in y])
    z, y = z[keep], y[keep]
    seen: dict[int, int] = {}
    first = []
    for c in y.tolist():
        first.append(seen.get(c, 0) % 2 == 0)
        seen[c] = seen.get(c, 0) + 1
    held = torch.tensor(first)
    folds = [(out, estimate(z[~out], y[~out], shared[0], identity)) for out in (held, ~held)]

    def loss(beta: np.ndarray) -> float:
        total = 0.0
        for out, own in folds:
            weight, bias = rule(*(b * o + (1 - b) * s for b, o, s in zip(beta, own, shared, strict=True)), priors)
            total += F.cross_entropy(z[out] @ weight.T + bias, y[out]).item()
        return total

    return loss


@pytest.mark.parametrize("identity", [True, False])
def test_two_rounds_by_hand(federation, identity):
    simulation = Simulation(federation, PFedFDA(identity=identity), NET, rounds=2, **SETTINGS)
    net = simulation.server.net()
    body = list(net.body.named(net.body.vector).values())
    means, covariance = simulation.server.state["means"], simulation.server.state["covariance"]
    assert means.min() >= 0
    assert means.max() < 1
    assert torch.equal(covariance, torch.eye(6).double())
    sizes = torch.tensor([len(c.train) for c in federation.clients]).double()
    for _ in range(2):
        simulation.step()
        ups = []
        for i, client in enumerate(federation.clients):
            x, y = client.train.x.double(), client.train.y
            priors = smoothed(y)
            weight, bias = rule(means, covariance, priors)
            own = [t.clone().requires_grad_() for t in body]
            loss = F.cross_entropy(torch.relu(x @ own[0].T + own[1]) @ weight.T + bias, y)
            own = [(t - 0.01 * g).detach() for t, g in zip(own, torch.autograd.grad(loss, own), strict=True)]
            z = torch.relu(x @ own[0].T + own[1])
            beta = simulation.state(i)["beta"]
            if i < 2:
                validation = cross_validated(z, y, (means, covariance), priors, identity)
                best = minimize(validation, [0.5, 0.5], bounds=[(0, 1)] * 2, method="L-BFGS-B")
                assert validation(beta.numpy()) <= best.fun + 1e-4
            local = estimate(z, y, means, identity)
            mixed = [b * o + (1 - b) * s for b, o, s in zip(beta, local, (means, covariance), strict=True)]
            sent = (torch.cat([t.reshape(-1) for t in own]), *mixed)
            ups.append(sent)
            for name, value in zip(("body", "mixed_means", "mixed_covariance"), sent, strict=True):
                torch.testing.assert_close(simulation.traffic.up[i][name], value, rtol=0, atol=1e-9)
        vector, means, covariance = (
            sum(n * up[k] for n, up in zip(sizes, ups, strict=True)) / sizes.sum() for k in range(3)
        )
        for name, value in (("body", vector), ("means", means), ("covariance", covariance)):
            torch.testing.assert_close(simulation.server.state[name], value, rtol=0, atol=1e-9)
        body = list(net.body.named(vector).values())


def test_everyone_is_scored_with_a_rule_fitted_to_the_new_body(federation):
    simulation = Simulation(federation, PFedFDA(local_beta=True), NET, rounds=2, join=0.5, **SETTINGS).run()
    server = simulation.server.state
    w, b = simulation.server.net().body.named(server["body"]).values()
    for i, client in enumerate(federation.clients):
        x, y = client.train.x.double(), client.train.y
        own = estimate(torch.relu(x @ w.T + b), y, server["means"], True)  # β = 1: nothing of the shared statistics
        weight, bias = rule(*own, smoothed(y))
        logits = torch.relu(client.test.x.double() @ w.T + b) @ weight.T + bias
        loss = F.cross_entropy(logits, client.test.y, reduction="sum").item()
        assert simulation.scores[i].loss == pytest.approx(loss, abs=1e-8)
        torch.testing.assert_close(simulation.personal(i)(client.test.x.double()), logits, rtol=0, atol=1e-8)


def test_looking_at_a_personal_model_changes_nothing(federation):
    simulation = Simulation(federation, PFedFDA(), NET, rounds=2, join=0.5, **SETTINGS).run()
    before = [{k: v.clone() for k, v in simulation.state(i).items()} for i in range(4)]
    x = federation.clients[1].test.x.double()
    assert torch.equal(simulation.personal(1)(x), simulation.personal(1)(x))
    assert all(torch.equal(simulation.state(i)["beta"], before[i]["beta"]) for i in range(4))
    loss = F.cross_entropy(simulation.personal(1)(x), federation.clients[1].test.y, reduction="sum").item()
    assert simulation.scores[1].loss == pytest.approx(loss, abs=1e-12)  # what is stored is what was scored


def test_right_after_training_the_rule_is_that_of_what_was_sent(federation):
    simulation = Simulation(federation, PFedFDA(), NET, rounds=1, eval_point="after_train", **SETTINGS).run()
    for i, client in enumerate(federation.clients):
        up = simulation.traffic.up[i]
        w, b = simulation.server.net().body.named(up["body"]).values()
        weight, bias = rule(up["mixed_means"], up["mixed_covariance"], smoothed(client.train.y))
        logits = torch.relu(client.test.x.double() @ w.T + b) @ weight.T + bias
        loss = F.cross_entropy(logits, client.test.y, reduction="sum").item()
        assert simulation.scores[i].loss == pytest.approx(loss, abs=1e-8)


def test_switches_of_beta(federation):
    single = Simulation(federation, PFedFDA(single_beta=True), NET, rounds=1, **SETTINGS).run()
    assert all(b[0] == b[1] for b in (single.state(i)["beta"] for i in range(4)))
    both = Simulation(federation, PFedFDA(), NET, rounds=1, **SETTINGS).run()
    assert any(b[0] != b[1] for b in (both.state(i)["beta"] for i in range(4)))
    assert all(((b >= 0) & (b <= 1)).all() for b in (both.state(i)["beta"] for i in range(4)))
    local = Simulation(federation, PFedFDA(local_beta=True), NET, rounds=1, **SETTINGS).run()
    assert local.state(0)["beta"].tolist() == [1, 1]


def test_too_few_samples_to_validate_with_trust_the_shared_statistics():
    rng = np.random.default_rng(0)
    labels = ([0], [0, 1, 2], [1, 1, 1, 1], [0, 0, 2])
    parts = [(rng.normal(size=(len(y), 5)), np.array(y), rng.normal(size=(2, 5)), np.array([0, 2])) for y in labels]
    simulation = Simulation(Federation.from_clients(parts), PFedFDA(), NET, rounds=2, **SETTINGS).run()
    assert simulation.state(0)["beta"].tolist() == simulation.state(1)["beta"].tolist() == [0, 0]
    assert simulation.state(2)["beta"].max() > 0
    assert all(math.isfinite(s.loss) for s in simulation.scores.values())
    assert all(torch.isfinite(t).all() for t in simulation.server.state.values())


@pytest.mark.parametrize("broken", ["covariance", "means"])
def test_where_the_fit_fails_the_last_beta_stays(federation, broken):
    simulation = Simulation(federation, PFedFDA(), NET, rounds=1, **SETTINGS)
    client = simulation.worker._client(0, 1, "fit")
    client.state["beta"] = torch.tensor([0.25, 0.75]).double()
    fine = Gaussian(simulation.server.state["means"], simulation.server.state["covariance"])
    shared = fine._replace(**{broken: torch.full_like(getattr(fine, broken), math.nan)})
    _, beta = PFedFDA()._adapted(client, client.net(), shared)
    assert beta.tolist() == [0.25, 0.75]


def test_what_travels(federation):
    simulation = Simulation(federation, PFedFDA(), NET, rounds=2, **SETTINGS).run()
    body, means, covariance = len(simulation.server.net().body) * 8, 3 * 6 * 8, 6 * 6 * 8
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("down", "body", body),
        ("down", "means", means),
        ("down", "covariance", covariance),
        ("up", "body", body),
        ("up", "mixed_means", means),
        ("up", "mixed_covariance", covariance),
    }


def test_a_head_without_bias_is_refused(federation):
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    with pytest.raises(FedTailorError, match="without bias"):
        Simulation(federation, PFedFDA(), module, **SETTINGS)
