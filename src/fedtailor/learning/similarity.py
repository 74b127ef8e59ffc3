"""How alike clients are: by the labels they hold, and by the weights they have learned."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def label_similarity(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Cosine of label counts or shares (clients × classes), each row with each; a client without samples is like no one."""
    rows = F.normalize(labels.double(), dim=1)
    columns = rows if others is None else F.normalize(others.double(), dim=1)
    return rows @ columns.T


def squared_distances(vectors: Tensor) -> Tensor:
    """‖w_i − w_j‖² of all rows (n × n, zero on the diagonal) from one matrix product.

    The mean is taken off first: what models share would otherwise drown their differences in rounding.
    """
    centred = vectors - vectors.mean(0)
    products = centred @ centred.T
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp_(min=0).fill_diagonal_(0)
