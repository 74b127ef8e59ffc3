"""Quadratic programs over the simplex: weights that are non-negative and sum to 1.

The programs of all clients are solved together. SciPy solves one at a time: for 100 clients, its `nnls` took 70 times and SLSQP 2,800
times as long (CPU seconds on one core, with the sum constraint as a heavy row for `nnls`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.cores import ROWS, on_all_cores

FEW = 16  # weights that are positive at the start, and the fewest that may enter in one step
BLOCK = 2**17  # entries of the systems that are solved together, so that they fit in a cache


def argmin_on_simplex(q: Tensor, b: Tensor) -> Tensor:
    """Return, for each row of b, the weights a (a ≥ 0, Σa = 1) that minimize ½aᵀQa − bᵀa; Q is positive semi-definite.

    Usually either all weights are positive, or few. In the second case, many weights are exchanged at a time, for all rows together; a
    row for which this does not converge is solved by an active-set method, which always does.
    """
    matrix, rows = q.double().cpu(), torch.atleast_2d(b.double().cpu())
    ridge = 1e-12 * (matrix.diagonal().mean().item() or 1.0)  # a unique solution, even if Q is singular
    matrix = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype)
    weights = _unbounded(matrix, rows)
    some = ~(weights > 0).all(1)
    if some.any():
        weights[some] = _exchanged(matrix, rows[some])
    for i in (~_are_optimal(matrix, rows, weights)).nonzero()[:, 0].tolist():
        weights[i] = _active_set(matrix, rows[i], weights[i])
    return (weights / weights.sum(1, keepdim=True)).to(b).view(b.shape)


def onto_simplex(rows: Tensor) -> Tensor:
    """Project each row onto the simplex."""
    falling = rows.sort(dim=1, descending=True).values
    levels = (falling.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    last = (falling > levels).sum(1, keepdim=True) - 1
    return (rows - levels.gather(1, last)).clamp(min=0)


def _unbounded(q: Tensor, b: Tensor) -> Tensor:
    """Solve the equality-constrained problem for all rows at once, ignoring the non-negativity constraint."""
    ends = torch.cat([b.T, torch.ones_like(b[:1].T)], dim=1)
    to_b, to_one = torch.linalg.solve_ex(q, ends).result.T.split([len(b), 1])
    return to_b + (1 - to_b.sum(1, keepdim=True)) / to_one.sum() * to_one


def _exchanged(q: Tensor, b: Tensor, steps: int = 100) -> Tensor:
    """Exchange many weights at a time: negative ones leave the support, those with the lowest gradients enter.

    This need not converge, since a step may increase the objective; a row with negative weights at the end is projected.
    """
    slack = _slack(q, b)
    support = _lowest(q.diagonal() / 2 - b, torch.full((len(b),), FEW))
    a = support / support.sum(1, keepdim=True, dtype=q.dtype)
    under_way = torch.arange(len(b))
    for _ in range(steps):
        held, row = support[under_way], b[under_way]
        found, level = _solved(q, row, held)
        solvable = found.isfinite().all(1, keepdim=True)
        a[under_way] = now = torch.where(solvable, found, a[under_way])
        gradient = torch.where(held, 0.0, _product(now, q) - row - level)
        entering = _lowest(gradient, (held.sum(1) // 4).clamp(min=FEW)) & (gradient < -slack)
        exchanged = (held & (now <= 0)) | entering
        support[under_way] = held ^ exchanged
        under_way = under_way[exchanged.any(1)]
        if not len(under_way):
            break
    negative = (a < 0).any(1)
    a[negative] = onto_simplex(a[negative])
    return a


def _lowest(values: Tensor, counts: Tensor) -> Tensor:
    """Return a mask of the lowest entries of each row, as many as `counts` gives."""
    most = min(int(counts.max()), values.shape[1])
    wanted = torch.arange(most) < counts.unsqueeze(1)
    return torch.zeros_like(values, dtype=torch.bool).scatter(1, values.topk(most, largest=False).indices, wanted)


def _solved(q: Tensor, b: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Solve the equality-constrained problem of each row on its support; also return the gradient, which is equal on the support."""
    a, level = torch.zeros_like(b), b.new_zeros(len(b), 1)
    empty, padded = len(q), F.pad(q, (0, 1, 0, 1))
    counts = support.sum(1)

    def solve(rows: Tensor) -> None:
        size = int(counts[rows[0]])
        row, weight = support[rows].nonzero(as_tuple=True)
        slot = support[rows].cumsum(1)[row, weight] - 1
        index = torch.full((len(rows), size), empty).index_put_((row, slot), weight)
        systems = padded[index.unsqueeze(2), index.unsqueeze(1)]
        systems.diagonal(dim1=1, dim2=2).add_(index == empty)
        ends = torch.zeros(len(rows), size, 2, dtype=q.dtype)
        ends[row, slot] = torch.stack([b[rows[row], weight], torch.ones_like(weight, dtype=q.dtype)], dim=1)
        to_b, to_one = torch.linalg.solve_ex(systems, ends).result.unbind(2)
        level[rows] = (1 - to_b.sum(1, keepdim=True)) / to_one.sum(1, keepdim=True)
        a[rows[row], weight] = (to_b + level[rows] * to_one)[row, slot]

    on_all_cores(solve, _of_like_size(counts))
    return a, level


def _of_like_size(counts: Tensor) -> list[Tensor]:
    """Return the rows in blocks, those with the largest systems first."""
    blocks, order = [], counts.argsort(descending=True)
    while len(order):
        block, order = order.tensor_split([max(1, BLOCK // int(counts[order[0]]) ** 2)])
        blocks.append(block)
    return blocks


def _product(a: Tensor, q: Tensor) -> Tensor:
    return torch.cat(on_all_cores(lambda rows: rows @ q, a.split(ROWS)))


def _slack(q: Tensor, b: Tensor) -> Tensor:
    """Return the tolerance within which gradients count as equal."""
    return 1e-10 * (q.abs().max() + b.abs().max())


def _are_optimal(q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Check the optimality of each row: gradients are equal where weights are positive, and nowhere lower."""
    gradient = _product(a, q) - b
    level = gradient.masked_fill(a == 0, -torch.inf).amax(1)
    return (a >= 0).all(1) & (level <= gradient.amin(1) + _slack(q, b))


def _active_set(q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Solve one row: let weights with a lower gradient enter the support, one at a time, until there are none."""
    a, support = _settled(q, b, a, a.nonzero().squeeze(1))
    slack = _slack(q, b)
    for _ in range(10 * len(b)):  # each pass lowers the objective, so it converges; the bound guards against rounding
        gradient = q @ a - b
        level = gradient[support].mean()  # all equal, since a is optimal on the support
        gradient[support] = torch.inf
        lowest, entering = gradient.min(0)
        if lowest >= level - slack:
            break
        a, support = _settled(q, b, a, torch.cat([support, entering.view(1)]))
    return a


def _settled(q: Tensor, b: Tensor, a: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Move to the optimum on the support; a weight that reaches zero on the way leaves it, and the optimum is computed again."""
    while True:
        ends = torch.stack([b[support], torch.ones_like(b[support])], dim=1)
        to_b, to_one = torch.linalg.solve(q[support][:, support], ends).T
        now, best = a[support], to_b + (1 - to_b.sum()) / to_one.sum() * to_one
        if (best > 0).all():
            return torch.zeros_like(a).index_copy_(0, support, best), support
        reach = torch.where(best > 0, torch.inf, now / (now - best))
        moved = torch.where(reach > reach.min(), now + reach.min() * (best - now), 0.0)
        a = torch.zeros_like(a).index_copy_(0, support, moved)
        support = support[moved > 0]
