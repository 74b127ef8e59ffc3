"""The real data sets, where FEDTAILOR_DATA says they are; a set that is not there is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import fedtailor.data.sources  # noqa: F401
from fedtailor.data.pool import Pool, sources
from fedtailor.errors import FedTailorError

ROOT = os.environ.get("FEDTAILOR_DATA", "")
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not ROOT, reason="set FEDTAILOR_DATA to the folder that holds the data sets"),
]


def read(name: str) -> Pool:
    try:
        return sources.build(name, {}).read(Path(ROOT))
    except FedTailorError as error:
        if "is not there" in str(error):
            pytest.skip(f"{name} is not below FEDTAILOR_DATA")
        raise


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist(name: str) -> None:
    pool = read(name)
    assert pool.x.shape == (70_000, 1, 28, 28)
    assert pool.test is not None
    assert pool.test.sum() == 10_000
    counts = np.bincount(pool.y)
    assert counts.tolist() == (
        [7000] * 10 if name == "fashion-mnist" else [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    )


def test_cifar10() -> None:
    pool = read("cifar10")
    assert pool.x.shape == (60_000, 3, 32, 32)
    assert pool.test is not None
    assert np.bincount(pool.y).tolist() == [6000] * 10
    assert np.bincount(pool.y[pool.test]).tolist() == [1000] * 10
    # The known channel means of the training images tell that no byte is out of place.
    assert np.allclose(pool.x[~pool.test].mean((0, 2, 3)) / 255, (0.4914, 0.4822, 0.4465), atol=1e-4)


def test_cifar100() -> None:
    pool = read("cifar100")
    assert pool.classes == 100
    assert len(pool) % 30_000 == 0  # a half of it is enough
    assert np.bincount(pool.y, minlength=100).min() >= 200
    assert np.allclose(pool.x.mean((0, 2, 3)) / 255, (0.5071, 0.4867, 0.4408), atol=5e-3)


def test_har() -> None:
    pool = read("har")
    assert pool.x.shape == (10_299, 9, 128)
    assert len(pool.owners) == 30
    assert np.bincount(pool.y).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert pool.test is not None
    assert 0.2 < pool.test.mean() < 0.35


def test_agnews() -> None:
    pool = read("agnews")
    assert pool.test is not None
    assert np.bincount(pool.y[pool.test]).tolist() == [1900] * 4
    assert len(pool) > 7600 + 30_000
    assert pool.x.shape[1] == 200
    assert 20_000 < pool.vocabulary <= 98_635
    assert pool.x.max() == pool.vocabulary - 1


def test_flowers() -> None:
    pool = read("flowers102")
    assert pool.x.shape == (8189, 3, 64, 64)
    assert pool.classes == 102
    assert np.bincount(pool.y).min() == 40
    assert np.bincount(pool.y).max() == 258


def test_tiny_imagenet() -> None:
    pool = read("tiny-imagenet")
    assert pool.x.shape == (100_000, 3, 64, 64)
    assert np.bincount(pool.y).tolist() == [500] * 200
