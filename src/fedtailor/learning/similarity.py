"""How alike clients are: by the labels they hold, and by the weights they have learned."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.cores import on_all_cores
from fedtailor.learning.mixing import column_blocks

ROWS = 250


def label_similarity(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Cosine of label counts or shares (clients × classes), each row with each; a client without samples is like no one."""
    rows = F.normalize(labels.double(), dim=1)
    columns = rows if others is None else F.normalize(others.double(), dim=1)
    return rows @ columns.T


def squared_distances(vectors: Tensor) -> Tensor:
    """‖w_i − w_j‖² of all rows (n × n, zero on the diagonal) from matrix products of blocks of columns, added up in float64.

    The mean is taken off first: what models share would otherwise drown their differences in rounding.
    """
    n = len(vectors)

    def products_of(columns: slice) -> Tensor:
        centred = vectors[:, columns] - vectors[:, columns].mean(0)
        found = vectors.new_zeros(n, n)
        for start in range(0, n, ROWS):  # on and above the diagonal, for below it all is the same
            some = slice(start, start + ROWS)
            torch.mm(centred[some], centred[start:].T, out=found[some, start:])
        return found

    products = torch.zeros(n, n, dtype=torch.float64, device=vectors.device)
    for found in on_all_cores(products_of, column_blocks(vectors.shape[1])):
        products += found
    products = products.triu() + products.triu(1).T
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp_(min=0).fill_diagonal_(0).to(vectors)
