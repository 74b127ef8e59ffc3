"""Quadratic programs over shares: weights that are not negative and sum to one.

All clients' programs are solved together. SciPy solves one at a time: for 100 clients, its `nnls` took 70 times and SLSQP 2,800 times
as long (CPU seconds on one core, the sum constraint as a heavy row for `nnls`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.cores import ROWS, on_all_cores

FEW = 16  # shares that are positive at the start, and the fewest that may enter in one step
BLOCK = 2**17  # entries of the systems solved together: as many as a cache holds


def argmin_on_simplex(q: Tensor, b: Tensor) -> Tensor:
    """For each row of b, the shares a (a ≥ 0, Σa = 1) with the least ½aᵀQa − bᵀa; Q is positive semi-definite.

    As a rule all shares are positive, or few. Exchanging many at a time, for all rows together, finds the few; a row that does not get
    there is ended by an active-set method, which always does.
    """
    matrix, rows = q.double().cpu(), torch.atleast_2d(b.double().cpu())
    ridge = 1e-12 * (matrix.diagonal().mean().item() or 1.0)  # one solution, also where Q is singular
    matrix = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype)
    shares = _unbounded(matrix, rows)
    some = ~(shares > 0).all(1)
    if some.any():
        shares[some] = _descended(matrix, rows[some])
    for i in (~_are_least(matrix, rows, shares)).nonzero()[:, 0].tolist():
        shares[i] = _least(matrix, rows[i], shares[i])
    return (shares / shares.sum(1, keepdim=True)).to(b).view(b.shape)


def onto_simplex(rows: Tensor) -> Tensor:
    """The nearest shares to each row."""
    falling = rows.sort(dim=1, descending=True).values
    levels = (falling.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    last = (falling > levels).sum(1, keepdim=True) - 1
    return (rows - levels.gather(1, last)).clamp(min=0)


def _unbounded(q: Tensor, b: Tensor) -> Tensor:
    """What is best for each row, were shares allowed to be negative: one system for all."""
    ends = torch.cat([b.T, torch.ones_like(b[:1].T)], dim=1)
    to_b, to_one = torch.linalg.solve_ex(q, ends).result.T.split([len(b), 1])
    return to_b + (1 - to_b.sum(1, keepdim=True)) / to_one.sum() * to_one


def _descended(q: Tensor, b: Tensor, steps: int = 100) -> Tensor:
    """Shares after exchanging many at a time: the negative ones leave, those that lower the value most enter.

    It need not end by itself, for a step may raise the value; a row that is astray in the end is left at the nearest shares.
    """
    slack = _slack(q, b)
    inside = _lowest(q.diagonal() / 2 - b, torch.full((len(b),), FEW))
    a = inside / inside.sum(1, keepdim=True, dtype=q.dtype)
    under_way = torch.arange(len(b))
    for _ in range(steps):
        held, row = inside[under_way], b[under_way]
        found, level = _solved(q, row, held)
        solvable = found.isfinite().all(1, keepdim=True)
        a[under_way] = now = torch.where(solvable, found, a[under_way])
        gradient = torch.where(held, 0.0, _product(now, q) - row - level)
        entering = _lowest(gradient, (held.sum(1) // 4).clamp(min=FEW)) & (gradient < -slack)
        exchanged = (held & (now <= 0)) | entering
        inside[under_way] = held ^ exchanged
        under_way = under_way[exchanged.any(1)]
        if not len(under_way):
            break
    astray = (a < 0).any(1)
    a[astray] = onto_simplex(a[astray])
    return a


def _lowest(values: Tensor, counts: Tensor) -> Tensor:
    """A mask of so many entries of each row, the lowest."""
    most = min(int(counts.max()), values.shape[1])
    wanted = torch.arange(most) < counts.unsqueeze(1)
    return torch.zeros_like(values, dtype=torch.bool).scatter(1, values.topk(most, largest=False).indices, wanted)


def _solved(q: Tensor, b: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """What is best for each row on the shares inside, were they allowed to be negative, and the gradient that all of these then have."""
    a, level = torch.zeros_like(b), b.new_zeros(len(b), 1)
    nobody, padded = len(q), F.pad(q, (0, 1, 0, 1))
    counts = inside.sum(1)

    def solve(rows: Tensor) -> None:
        size = int(counts[rows[0]])
        row, share = inside[rows].nonzero(as_tuple=True)
        slot = inside[rows].cumsum(1)[row, share] - 1
        index = torch.full((len(rows), size), nobody).index_put_((row, slot), share)
        systems = padded[index.unsqueeze(2), index.unsqueeze(1)]
        systems.diagonal(dim1=1, dim2=2).add_(index == nobody)
        ends = torch.zeros(len(rows), size, 2, dtype=q.dtype)
        ends[row, slot] = torch.stack([b[rows[row], share], torch.ones_like(share, dtype=q.dtype)], dim=1)
        to_b, to_one = torch.linalg.solve_ex(systems, ends).result.unbind(2)
        level[rows] = (1 - to_b.sum(1, keepdim=True)) / to_one.sum(1, keepdim=True)
        a[rows[row], share] = (to_b + level[rows] * to_one)[row, slot]

    on_all_cores(solve, _of_like_size(counts))
    return a, level


def _of_like_size(counts: Tensor) -> list[Tensor]:
    """Rows in blocks, those with the largest systems first."""
    blocks, order = [], counts.argsort(descending=True)
    while len(order):
        block, order = order.tensor_split([max(1, BLOCK // int(counts[order[0]]) ** 2)])
        blocks.append(block)
    return blocks


def _product(a: Tensor, q: Tensor) -> Tensor:
    return torch.cat(on_all_cores(lambda rows: rows @ q, a.split(ROWS)))


def _slack(q: Tensor, b: Tensor) -> Tensor:
    """Slopes that differ by less are equal."""
    return 1e-10 * (q.abs().max() + b.abs().max())


def _are_least(q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Whether the shares of each row are the best: gradients are equal where a share is positive, and nowhere lower."""
    gradient = _product(a, q) - b
    level = gradient.masked_fill(a == 0, -torch.inf).amax(1)
    return (a >= 0).all(1) & (level <= gradient.amin(1) + _slack(q, b))


def _least(q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """The best shares for one row: let in one that lowers the value, until there is none."""
    a, inside = _settled(q, b, a, a.nonzero().squeeze(1))
    slack = _slack(q, b)
    for _ in range(10 * len(b)):  # each pass lowers the value, so it ends by itself; the bound is for rounding
        gradient = q @ a - b
        level = gradient[inside].mean()  # all equal where a is best on the shares inside
        gradient[inside] = torch.inf
        lowest, entering = gradient.min(0)
        if lowest >= level - slack:
            break
        a, inside = _settled(q, b, a, torch.cat([inside, entering.view(1)]))
    return a


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
