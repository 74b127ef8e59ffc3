"""Discriminant analysis against scikit-learn and by hand, and the parts of the fit of β."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn import functional as F

from fedtailor.learning.discriminant import (
    Gaussian,
    alternate,
    argmin_in_unit_box,
    bayes_rule,
    cross_validated_weight,
    estimated,
    loss_of_beta,
)

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
    found = argmin_in_unit_box(
        lambda b: ((b - target) * torch.tensor([1.0, 3.0])).square().sum(), torch.full((2,), 0.5).double()
    )
    torch.testing.assert_close(found, target.clamp(0, 1), rtol=0, atol=3e-3)


def test_folds_take_every_other_sample_of_a_class():
    y = torch.tensor([2, 0, 2, 2, 0, 5, 5, 2])
    assert alternate(y).tolist() == [True, True, False, True, False, True, False, False]


@pytest.mark.parametrize("floor", [EPS, 1 + EPS])
def test_the_estimate_is_that_by_hand(floor):
    z, y = map(torch.from_numpy, drawn(4))
    shared = Gaussian(torch.ones(3, 4).double(), torch.eye(4).double())
    here = y < 2  # the third class is absent
    found = estimated(z[here], y[here], shared, floor)
    means, covariance = estimate(z[here], y[here], shared.means, floor > 1)
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found.covariance, covariance)
    assert torch.equal(found.means[2], shared.means[2])


def test_a_share_is_no_worse_than_any_of_a_grid_and_one_for_both_if_asked():
    shared, _ = two_gaussians()
    z, y = map(torch.from_numpy, drawn(3))
    priors, first = smoothed(y), alternate(y)
    settings = {"eps": EPS, "floor": EPS}
    folds = [
        loss_of_beta(shared, estimated(z[~held], y[~held], shared, EPS), priors, EPS, z[held], y[held])
        for held in (first, ~first)
    ]
    beta = cross_validated_weight(z, y, shared, priors, single=False, **settings)
    grid = [torch.tensor([a, b]).double() for a in np.linspace(0, 1, 11) for b in np.linspace(0, 1, 11)]
    assert sum(f(beta) for f in folds) <= min(sum(f(b) for f in folds) for b in grid) + 1e-4
    single = cross_validated_weight(z, y, shared, priors, single=True, **settings)
    assert single[0] == single[1]


def test_a_share_that_cannot_be_validated_is_nothing_and_one_that_fails_is_none():
    shared, _ = two_gaussians()
    z, y = map(torch.from_numpy, drawn(3))
    settings = {"eps": EPS, "floor": EPS, "single": False}
    assert cross_validated_weight(z[:3], y[:3], shared, smoothed(y), **settings).tolist() == [0, 0]
    broken = shared._replace(covariance=shared.covariance * torch.nan)
    assert cross_validated_weight(z, y, broken, smoothed(y), **settings) is None
