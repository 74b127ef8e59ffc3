"""pFedFDA: discriminant analysis against scikit-learn and by hand, the fit of β, and a whole round."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.methods.pfedfda import (
    Gaussian,
    PFedFDA,
    alternate,
    bayes_rule,
    least_in_unit_box,
    loss_of_beta,
)
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.01, "seed": 3}
EPS = 1e-4


def drawn(seed: int = 0, n: int = 60, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 1, 2], rng.choice(3, size=n - 3, p=[0.5, 0.3, 0.2])])
    return rng.normal(size=(3, d))[y] * 1.5 + rng.normal(size=(n, d)) @ rng.normal(size=(d, d)), y


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


@pytest.mark.parametrize("solver", ["lsqr", "eigen"])
def test_the_rule_is_scikit_learns(solver):
    x, y = drawn()
    reference = LinearDiscriminantAnalysis(solver=solver, shrinkage=EPS).fit(x, y)
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    covariance = (x - means[y]).T @ (x - means[y]) / len(y)
    priors = np.bincount(y) / len(y)
    weight, bias = bayes_rule(Gaussian(*map(torch.from_numpy, (means, covariance))), torch.from_numpy(priors), EPS)
    logits = (torch.from_numpy(x) @ weight.T + bias).numpy()
    assert (logits.argmax(1) == reference.predict(x)).all()
    np.testing.assert_allclose(torch.from_numpy(logits).softmax(1), reference.predict_proba(x), atol=1e-8)
    if solver == "lsqr":
        np.testing.assert_allclose(weight, reference.coef_, atol=1e-9)
        np.testing.assert_allclose(bias, reference.intercept_, atol=1e-9)


def two_gaussians() -> tuple[Gaussian, Gaussian]:
    own = Gaussian(*estimate(*map(torch.from_numpy, drawn(1)), torch.zeros(3, 4), False))
    return Gaussian(*estimate(*map(torch.from_numpy, drawn(2)), torch.zeros(3, 4), True)), own


def test_the_loss_of_beta_is_that_of_the_mixed_rule():
    shared, own = two_gaussians()
    z, y = map(torch.from_numpy, drawn(3))
    priors = smoothed(y)
    loss = loss_of_beta(shared, own, priors, EPS, z, y)
    for beta in ([0.0, 0.0], [1.0, 1.0], [0.3, 0.8], [0.4]):
        b = torch.tensor(beta).double()
        mixed = [b[k] * o + (1 - b[k]) * s for k, o, s in zip((0, -1), own, shared, strict=True)]
        weight, bias = rule(*mixed, priors)
        torch.testing.assert_close(loss(b), F.cross_entropy(z @ weight.T + bias, y), rtol=0, atol=1e-9)


@pytest.mark.parametrize("centre", [(0.2, 0.7), (1.4, 0.6), (-0.3, 1.2), (0.0, 1.0)])
def test_the_least_value_in_the_box_may_lie_on_its_edge(centre):
    target = torch.tensor(centre).double()
    found = least_in_unit_box(
        lambda b: ((b - target) * torch.tensor([1.0, 3.0])).square().sum(), torch.full((2,), 0.5).double()
    )
    torch.testing.assert_close(found, target.clamp(0, 1), rtol=0, atol=3e-3)


def test_folds_take_every_other_sample_of_a_class():
    y = torch.tensor([2, 0, 2, 2, 0, 5, 5, 2])
    assert alternate(y).tolist() == [True, True, False, True, False, True, False, False]


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
    z, y = client.embed(client.net())
    assert PFedFDA()._fitted_beta(client, z, y, shared).tolist() == [0.25, 0.75]


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
