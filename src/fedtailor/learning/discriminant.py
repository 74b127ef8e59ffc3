"""Linear discriminant analysis: the Bayes rule of Gaussian features, and how much of the own statistics to mix into shared ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.prototypes import class_means


class Gaussian(NamedTuple):
    """Features of each class: its mean μ_c, and the covariance Σ all classes share, in float64 because Σ has to be solved with."""

    means: Tensor
    covariance: Tensor

    def mixed(self, own: Gaussian, beta: Tensor) -> Gaussian:
        """β of the own statistics, 1 − β of these; β is (β_μ, β_Σ), or one for both."""
        return Gaussian(self.means.lerp(own.means, beta[0]), self.covariance.lerp(own.covariance, beta[-1]))


def estimated(z: Tensor, y: Tensor, shared: Gaussian, floor: float) -> Gaussian:
    """Means and pooled covariance of features; the mean of an absent class is the shared one.

    `floor`, added to the variances, makes the covariance positive definite, however few the samples.
    """
    means, counts = class_means(z, y, len(shared.means))
    means = torch.where((counts > 0).unsqueeze(1), means, shared.means)
    rest = z - means[y]
    scatter = rest.T @ rest / max(len(y) - 1, 1)
    return Gaussian(means, scatter + floor * torch.eye(z.shape[1], dtype=z.dtype, device=z.device))


def cross_validated_share(
    z: Tensor, y: Tensor, shared: Gaussian, priors: Tensor, *, eps: float, floor: float, single: bool
) -> Tensor | None:
    """The β = (β_μ, β_Σ) in [0, 1]² of the own statistics with the least cross-entropy in two-fold cross-validation; None if that fails.

    Classes with one sample, which cannot be in both folds, are left out; with no others β is 0. `single` is one β for both.
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
        beta = least_in_unit_box(lambda b: folds[0](b) + folds[1](b), z.new_full((1 if single else 2,), 0.5))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    return beta.expand(2).clone() if torch.isfinite(beta).all() else None


def shrunk(covariance: Tensor, eps: float) -> Tensor:
    """Σ' = (1 − ε)Σ + ε·(tr Σ / d)·I."""
    d = len(covariance)
    level = eps * covariance.trace() / d
    return (1 - eps) * covariance + level * torch.eye(d, dtype=covariance.dtype, device=covariance.device)


def bayes_rule(gaussian: Gaussian, priors: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of linear discriminant analysis: log q_c + log N(z; μ_c, Σ') up to a constant."""
    weight = torch.linalg.solve_ex(shrunk(gaussian.covariance, eps), gaussian.means.T).result.T
    return weight, priors.log() - (gaussian.means * weight).sum(1) / 2


def loss_of_beta(
    shared: Gaussian, own: Gaussian, priors: Tensor, eps: float, z: Tensor, y: Tensor
) -> Callable[[Tensor], Tensor]:
    """Cross-entropy on (z, y) of the Bayes rule of `shared.mixed(own, β)`, as a function of β.

    In the coordinates in which the shared covariance is the identity and the own one diagonal every mix of them is diagonal, so that a
    trial of β solves nothing.
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
    """A mask of every other sample of each class, in the order they come."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y), device=y.device) - starts[y[order]]
    return rank % 2 == 0


def least_in_unit_box(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """L-BFGS on t with β = sin²t, which reaches 0 and 1 at finite t, as a sigmoid would not."""
    t = start.sqrt().asin().requires_grad_()
    solver = torch.optim.LBFGS([t], max_iter=10, max_eval=40, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        value = loss(t.sin().square())
        value.backward()
        return value.item()

    solver.step(closure)
    return t.detach().sin().square()
