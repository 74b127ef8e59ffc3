"""Quadratic programs over shares: weights that are not negative and sum to one."""

from __future__ import annotations

import torch
from torch import Tensor


def least_on_simplex(q: Tensor, b: Tensor) -> Tensor:
    """For each row of b, the shares a (a ≥ 0, Σa = 1) with the least ½aᵀQa − bᵀa; Q is positive semi-definite.

    Gradient steps on all rows at once find out, nearly, which shares are positive; an active-set method then ends each row exactly.
    """
    matrix, rows = q.double().cpu(), torch.atleast_2d(b.double().cpu())
    ridge = 1e-12 * (matrix.diagonal().mean().item() or 1.0)  # one solution, also where Q is singular
    matrix = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype)
    starts = _descended(matrix, rows)
    shares = [_least(matrix, row, start) for row, start in zip(rows, starts, strict=True)]
    return torch.stack(shares).to(b).view(b.shape)


def onto_simplex(rows: Tensor) -> Tensor:
    """The nearest shares to each row."""
    falling = rows.sort(dim=1, descending=True).values
    levels = (falling.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    last = (falling > levels).sum(1, keepdim=True) - 1
    return (rows - levels.gather(1, last)).clamp(min=0)


def _descended(q: Tensor, b: Tensor, steps: int = 60) -> Tensor:
    """Projected gradient descent with Nesterov's momentum, from equal shares."""
    rate = 1 / torch.linalg.eigvalsh(q)[-1]
    a = ahead = torch.full_like(b, 1 / b.shape[1])
    for k in range(steps):
        before, a = a, onto_simplex(ahead - rate * (ahead @ q - b))
        ahead = a + k / (k + 3) * (a - before)
    return a


def _least(q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """The best shares for one row: let in one that lowers the value, until there is none."""
    a, inside = _settled(q, b, a, a.nonzero().squeeze(1))
    slack = 1e-10 * (q.abs().max() + b.abs().max())
    for _ in range(10 * len(b)):  # each pass lowers the value, so it ends by itself; the bound is for rounding
        slope = q @ a - b
        level = slope[inside].mean()  # all equal where a is best on the shares inside
        slope[inside] = torch.inf
        lowest, entering = slope.min(0)
        if lowest >= level - slack:
            break
        a, inside = _settled(q, b, a, torch.cat([inside, entering.view(1)]))
    return a / a.sum()


def _settled(q: Tensor, b: Tensor, a: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Move to what is best on the shares inside; one that becomes zero on the way drops out and the way is set anew."""
    while True:
        ends = torch.stack([b[inside], torch.ones_like(b[inside])], dim=1)
        to_b, to_one = torch.linalg.solve(q[inside][:, inside], ends).T
        now, best = a[inside], to_b + (1 - to_b.sum()) / to_one.sum() * to_one
        if (best > 0).all():
            return torch.zeros_like(a).index_copy_(0, inside, best), inside
        reach = torch.where(best > 0, torch.inf, now / (now - best))
        moved = torch.where(reach > reach.min(), now + reach.min() * (best - now), 0.0)
        a = torch.zeros_like(a).index_copy_(0, inside, moved)
        inside = inside[moved > 0]
