"""A federation small enough to compute by hand: floats, three classes, clients of different sizes and label skews."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor import Federation

SIZES = (12, 7, 20, 9)
CLASSES = 3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def federation() -> Federation:
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(CLASSES, 5)) * 2
    parts = []
    for k, size in enumerate(SIZES):
        y = rng.choice(CLASSES, size=size + 4, p=np.roll([0.6, 0.3, 0.1], k))
        x = (centres[y] + rng.normal(size=(size + 4, 5))).astype(np.float32)
        parts.append((x[:size], y[:size], x[size:], y[size:]))
    return Federation.from_clients(parts)
