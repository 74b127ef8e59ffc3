"""The best linear head on given features: a convex problem, solved to the end instead of by some epochs of SGD."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.errors import FedTailorError
from fedtailor.learning.sample_weights import weights_of

MOST = 5000  # iterations; well-posed problems need some dozens
SMALL = 1e-9  # largest entry of the gradient at a solution


def convex_head(
    z: Tensor,
    y: Tensor,
    given: Tensor,
    strengths: Sequence[float],
    *,
    folds: int = 5,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, float]:
    """Return the head that minimizes CE(z·Wᵀ + b, y) + strength/2·‖(W, b) − given‖², and the strength.

    `given` is the vector of a linear head (`net.head.vector`): the rows of W, then b. Of several strengths, the one is taken with the
    smallest log-loss on held-out folds, cut at random by the generator; of equal ones, the strongest. Without a pull (strength 0) and
    with classes that a line separates there is no best head: the solver stops on the way.
    """
    if not strengths or min(strengths) < 0 or (len(strengths) > 1 and generator is None):
        raise ValueError("convex_head needs strengths of at least 0 and, to choose among several, a generator.")
    problem = _checked(z, y, given)
    chosen = max(strengths)
    if len(set(strengths)) > 1 and len(y) > 1:
        order = torch.randperm(len(y), generator=generator)
        cut = min(folds, len(y))
        losses = {s: _held_out_loss(problem, s, order, cut) for s in sorted(set(strengths), reverse=True)}
        chosen = min(losses, key=losses.__getitem__)
    head = _minimum(*problem, chosen)
    return torch.cat([head[:, :-1].reshape(-1), head[:, -1]]).to(given), float(chosen)


Problem = tuple[
    Tensor, Tensor, Tensor
]  # features with a column of ones, labels, and the given head with its bias as last column


def _checked(z: Tensor, y: Tensor, given: Tensor) -> Problem:
    """The problem in float64 on the CPU; not every device has that."""
    if weights_of(y) is not None:
        raise FedTailorError("convex_head does not support sample weights.")
    width = z.shape[1] + 1
    classes = len(given) // width
    if not classes or len(given) != classes * width or (len(y) and int(y.max()) >= classes):
        raise FedTailorError(
            f"convex_head needs the vector of a linear head with a bias, one output per class, on {width - 1} features; this one has "
            f"{len(given)} entries."
        )
    flat = given.detach().cpu().double()
    weight, bias = flat[:-classes].view(classes, -1), flat[-classes:]
    ones = torch.ones(len(y), 1, dtype=torch.float64)
    return torch.cat([z.detach().cpu().double(), ones], 1), y.cpu(), torch.cat([weight, bias[:, None]], 1)


def _minimum(z: Tensor, y: Tensor, given: Tensor, strength: float) -> Tensor:
    """The best head, by L-BFGS on its difference from the given one."""
    from scipy.optimize import minimize  # slow to import

    if not len(y):
        return given
    target = F.one_hot(y, len(given)).double()

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        moved = torch.from_numpy(flat).view_as(given)
        logs = F.log_softmax(z @ (given + moved).T, dim=1)
        value = -(logs * target).sum() / len(y) + strength / 2 * moved.square().sum()
        gradient = (logs.exp() - target).T @ z / len(y) + strength * moved
        return value.item(), gradient.reshape(-1).numpy()

    start = np.zeros(given.numel())
    options = {"maxiter": MOST, "maxfun": 2 * MOST, "gtol": SMALL, "ftol": 0.0}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return given + torch.from_numpy(found.x).view_as(given)


def _held_out_loss(problem: Problem, strength: float, order: Tensor, folds: int) -> float:
    """The log-loss of samples, each by the head that was fitted without its fold."""
    z, y, given = problem
    total = 0.0
    for fold in range(folds):
        out = order[fold::folds]
        rest = torch.cat([order[k::folds] for k in range(folds) if k != fold])
        head = _minimum(z[rest], y[rest], given, strength)
        total += F.cross_entropy(z[out] @ head.T, y[out], reduction="sum").item()
    return total / len(y)
