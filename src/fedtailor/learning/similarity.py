"""How alike clients are: by the labels they hold, and by the weights they have learned."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.cores import ROWS, on_all_cores
from fedtailor.learning.mixing import column_blocks


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
    products = torch.zeros(n, n, dtype=torch.float64, device=vectors.device)
    for columns in column_blocks(vectors.shape[1]):
        _add_products(vectors[:, columns] - vectors[:, columns].mean(0), products)
    products = products.triu() + products.triu(1).T
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp_(min=0).fill_diagonal_(0).to(vectors)


def _add_products(vectors: Tensor, products: Tensor) -> None:
    """Add those of all rows on and above the diagonal, for below it all is the same."""

    def add(start: int) -> None:
        products[start : start + ROWS, start:] += vectors[start : start + ROWS] @ vectors[start:].T

    on_all_cores(add, range(0, len(vectors), ROWS))
