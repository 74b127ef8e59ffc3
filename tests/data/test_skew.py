from __future__ import annotations

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.data.skew import skew_of

RNG = np.random.default_rng(3)


def clients(labels: list[np.ndarray], shift: float = 0.0, task: str | None = None) -> ft.Federation:
    """Clients with these labels; features depend on the label and, by `shift`, on the client."""
    parts = []
    for k, y in enumerate(labels):
        x = (y[:, None] + RNG.normal(size=(len(y), 6)) + shift * k).astype(np.float32)
        parts.append((x, y, x[:2], y[:2]))
    return ft.Federation.from_clients(parts, **({"task": task} if task else {}))


def test_clients_that_are_alike_have_no_skew():
    found = skew_of(clients([RNG.integers(0, 4, 150) for _ in range(8)]))
    assert (found.clients, found.samples) == (8, 1200)
    assert found.labels < 0.02
    assert found.features < 0.01
    assert found.sizes == 0
    assert all("hardly" in text for text in found.sentences())


def test_label_skew_is_told_from_feature_shift():
    own = skew_of(clients([np.full(60, k % 3) for k in range(6)]))
    assert own.labels == pytest.approx(2 / 3, abs=0.03)  # total variation of a class of its own from three even ones
    assert own.features < 0.02
    shifted = skew_of(clients([RNG.integers(0, 3, 100) for _ in range(6)], shift=1.0))
    assert shifted.labels < 0.05
    # the clients' means 0 … 5 have variance 35/12, each client's samples 1
    assert shifted.features == pytest.approx((35 / 12) / (35 / 12 + 1), abs=0.05)
    assert "much" in shifted.sentences()[2]


def test_sizes_by_hand():
    found = skew_of(clients([RNG.integers(0, 2, n) for n in (10, 10, 10, 70)]))
    assert found.sizes == pytest.approx(0.45)  # Gini: Σ|nᵢ − nⱼ| / (2·4·100) = 6·60/800


def test_targets_of_a_regression_are_compared_by_their_variance():
    alike = [RNG.normal(size=200).astype(np.float32) for _ in range(5)]
    apart = [(RNG.normal(size=200) + 3 * k).astype(np.float32) for k in range(5)]
    assert skew_of(clients(alike, task="regression")).labels < 0.03
    assert skew_of(clients(apart, task="regression")).labels == pytest.approx(18 / 19, abs=0.02)
