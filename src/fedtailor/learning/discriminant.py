"""Linear discriminant analysis: the Bayes rule for Gaussian features, and the best weight of own statistics among shared ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.prototypes import class_means


class Gaussian(NamedTuple):
    """The mean μ_c of each class and the common covariance Σ, in float64 because linear systems with Σ are solved."""

    means: Tensor
    covariance: Tensor

    def mixed(self, own: Gaussian, beta: Tensor) -> Gaussian:
        """Mix the own statistics, with weight β, and these, with weight 1 − β; β is (β_μ, β_Σ), or one number for both."""
        return Gaussian(self.means.lerp(own.means, beta[0]), self.covariance.lerp(own.covariance, beta[-1]))


def estimated(z: Tensor, y: Tensor, shared: Gaussian, floor: float) -> Gaussian:
    """Estimate means and pooled covariance from features; an absent class gets the shared mean.

    `floor` is added to the variances, which makes the covariance positive definite for any number of samples.
    """
    means, counts = class_means(z, y, len(shared.means))
    means = torch.where((counts > 0).unsqueeze(1), means, shared.means)
    rest = z - means[y]
    scatter = rest.T @ rest / max(len(y) - 1, 1)
    return Gaussian(means, scatter + floor * torch.eye(z.shape[1], dtype=z.dtype, device=z.device))


def cross_validated_weight(
    z: Tensor, y: Tensor, shared: Gaussian, priors: Tensor, *, eps: float, floor: float, single: bool
) -> Tensor | None:
    """Return the weights (β_μ, β_Σ) in [0, 1]² of the own statistics with the lowest cross-entropy in two-fold cross-validation.

    Classes with one sample, which cannot be in both folds, are left out; if there are no others, β is 0. With `single`, both weights are
    equal. Return None if the fit fails.
    """
    enough = y.bincount()[y] >= 2
    if not enough.any():
        return torch.zeros(2, dtype=z.dtype, device=z.device)
    z, y = z[enough], y[enough]
    first = alternate(y)
    try:
        folds = [
            loss_of_beta(shared, estimated(z[~held], y[~held], shared, floor), priors, eps, z[held], y[held])
            for held in (first, ~first)
        ]
        beta = argmin_in_unit_box(lambda b: folds[0](b) + folds[1](b), z.new_full((1 if single else 2,), 0.5))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    return beta.expand(2).clone() if torch.isfinite(beta).all() else None


def shrunk(covariance: Tensor, eps: float) -> Tensor:
    """Return Σ' = (1 − ε)Σ + ε·(tr Σ / d)·I."""
    d = len(covariance)
    level = eps * covariance.trace() / d
    return (1 - eps) * covariance + level * torch.eye(d, dtype=covariance.dtype, device=covariance.device)


def bayes_rule(gaussian: Gaussian, priors: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return weight and bias of linear discriminant analysis: log q_c + log N(z; μ_c, Σ') up to a constant."""
    weight = torch.linalg.solve_ex(shrunk(gaussian.covariance, eps), gaussian.means.T).result.T
    return weight, priors.log() - (gaussian.means * weight).sum(1) / 2


def loss_of_beta(
    shared: Gaussian, own: Gaussian, priors: Tensor, eps: float, z: Tensor, y: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return the cross-entropy on (z, y) of the Bayes rule for `shared.mixed(own, β)`, as a function of β.

    In coordinates in which the shared covariance is the identity and the own one diagonal, every mixture of them is diagonal, so that no
    linear system has to be solved for a new β.
    """
    root = torch.linalg.cholesky(shrunk(shared.covariance, eps))

    def whitened(rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(root, rows.T, upper=False).T

    variances, turn = torch.linalg.eigh(whitened(whitened(shrunk(own.covariance, eps)).T))
    z, shared_means, own_means = (whitened(rows) @ turn for rows in (z, shared.means, own.means))

    def loss(beta: Tensor) -> Tensor:
        means = shared_means.lerp(own_means, beta[0])
        weight = means / (1 + beta[-1] * (variances - 1))
        bias = priors.log() - (means * weight).sum(1) / 2
        return F.cross_entropy(z @ weight.T + bias, y)

    return loss


def alternate(y: Tensor) -> Tensor:
    """Return a mask of every other sample of each class, in their order."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y), device=y.device) - starts[y[order]]
    return rank % 2 == 0


def argmin_in_unit_box(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Minimize by L-BFGS over t with β = sin²t, which, unlike a sigmoid, reaches 0 and 1 at finite t."""
    t = start.sqrt().asin().requires_grad_()
    solver = torch.optim.LBFGS([t], max_iter=10, max_eval=40, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        value = loss(t.sin().square())
        value.backward()
        return value.item()

    solver.step(closure)
    return t.detach().sin().square()
