"""Similarity of clients: of their label distributions, and of their weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning.cores import ROWS, on_all_cores
from fedtailor.learning.mixing import column_blocks


def label_similarity(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the cosines of label counts or proportions (clients × classes) of all pairs; 0 for a client without samples."""
    rows = F.normalize(labels.double(), dim=1)
    columns = rows if others is None else F.normalize(others.double(), dim=1)
    return rows @ columns.T


def similarity_weights(labels: Tensor, others: Tensor) -> Tensor:
    """Return label similarities normalized to sum to 1 per row; a row stays 0 if no other has a label in common."""
    similarity = label_similarity(labels, others)
    return similarity / similarity.sum(1, keepdim=True).clamp(min=1e-300)


def squared_distances(vectors: Tensor) -> Tensor:
    """Return ‖w_i − w_j‖² of all pairs of rows (n × n, zero diagonal), from matrix products of column blocks summed in float64.

    The mean is subtracted first: otherwise rounding errors of what the models have in common would exceed their differences.
    """
    n = len(vectors)
    products = torch.zeros(n, n, dtype=torch.float64, device=vectors.device)
    for columns in column_blocks(vectors.shape[1]):
        _add_products(vectors[:, columns] - vectors[:, columns].mean(0), products)
    products = products.triu() + products.triu(1).T
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp_(min=0).fill_diagonal_(0).to(vectors)


def _add_products(vectors: Tensor, products: Tensor) -> None:
    """Add the products of all pairs of rows on and above the diagonal; those below are their mirror image."""

    def add(start: int) -> None:
        products[start : start + ROWS, start:] += vectors[start : start + ROWS] @ vectors[start:].T

    on_all_cores(add, range(0, len(vectors), ROWS))
