"""The arrays that a user gives for each client, as the samples and labels that a federation holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedtailor.data.client_data import ClientData, Split
from fedtailor.data.compact import Array, as_labels, as_samples, named_labels
from fedtailor.data.partition import hold_out
from fedtailor.data.task import Kind
from fedtailor.errors import FedTailorError


def with_class_numbers(parts: Sequence[Sequence[Array]]) -> tuple[Sequence[Sequence[Array]], tuple[str, ...]]:
    """Replace labels that are texts by class numbers, the same for all clients; also return the names of the classes."""
    where = [(i, j) for i, part in enumerate(parts) for j in (1, 3) if j < len(part)]
    numbers, names = named_labels([parts[i][j] for i, j in where])
    if not names:
        return parts, ()
    found = [list(part) for part in parts]
    for (i, j), y in zip(where, numbers, strict=True):
        found[i][j] = y
    return found, names


def client_of(name: str, part: Sequence[Array], kind: Kind, test_share: float, rng: np.random.Generator) -> ClientData:
    where = f"client '{name}'"
    if len(part) not in (2, 4):
        raise FedTailorError(f"{where}: expected (x, y) or (x_train, y_train, x_test, y_test), got {len(part)} arrays.")
    x, y = _pair(part[0], part[1], kind, where)
    if len(part) == 4:
        test_x, test_y = _pair(part[2], part[3], kind, f"{where}, test part")
        return ClientData(name, Split(x, y), Split(test_x, test_y))
    if not len(y):
        raise FedTailorError(f"{where} has no sample. Leave it out, or give it some.")
    deal = hold_out([np.arange(len(y))], test_share, rng)
    train, test = (torch.from_numpy(rows[0]) for rows in (deal.train, deal.test))
    return ClientData(name, Split(x[train], y[train]), Split(x[test], y[test]))


def _pair(x: Array, y: Array, kind: Kind, where: str) -> tuple[Tensor, Tensor]:
    samples, labels = as_samples(x, f"x of {where}"), as_labels(y, f"y of {where}", kind)
    if len(samples) != len(labels):
        raise FedTailorError(f"{where} has {len(samples)} samples but {len(labels)} labels.")
    return torch.from_numpy(np.array(samples)), torch.from_numpy(labels)
