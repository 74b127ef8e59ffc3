import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.partition import capped_counts, cut
from fedtailor.data.partitions.dirichlet import Dirichlet, least
from fedtailor.data.partitions.dirichlet_client import DirichletClient
from fedtailor.data.partitions.dirichlet_plain import DirichletPlain
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError


def pool_of(sizes):
    y = np.repeat(np.arange(len(sizes)), sizes)
    return Pool(np.zeros((len(y), 1), np.uint8), y, len(sizes))


def counts_of(deal, pool):
    """Clients × classes, training and test together."""
    return np.stack(
        [
            np.bincount(pool.y[np.append(a, b)], minlength=pool.classes)
            for a, b in zip(deal.train, deal.test, strict=True)
        ]
    )


def exact_ends(shares, size):
    """The published cut, size · cumulated share, in rational arithmetic."""
    exact = [Fraction(p) for p in shares]
    return [sum(exact[: j + 1]) / sum(exact) * size for j in range(len(exact))]


def published(shares, sizes):
    """The published loop over the classes, written out: clients × classes."""
    clients = shares.shape[1]
    held = np.zeros((clients, len(sizes)), int)
    for k, size in enumerate(sizes):
        open_shares = [0 if held[j].sum() >= sum(sizes) / clients else shares[k, j] for j in range(clients)]
        held[:, k] = np.diff([0, *map(math.floor, exact_ends(open_shares, size))])
    return held


def agrees(counts, shares, sizes):
    """Whether the counts are the published ones; where a cut is whole up to rounding (1e-12), it may fall one lower or higher."""
    clients = shares.shape[1]
    for k, size in enumerate(sizes):
        before = counts[:, :k].sum(axis=1)
        open_shares = [0 if before[j] >= sum(sizes) / clients else shares[k, j] for j in range(clients)]
        for end, exact in zip(np.cumsum(counts[:, k]), exact_ends(open_shares, size), strict=True):
            tie = abs(exact - round(exact)) < 1e-12
            if end != math.floor(exact) and not (tie and abs(end - exact) < 1.1):
                return False
    return True


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_the_published_loop(beta):
    sizes = [70, 50, 90, 40, 60, 80, 55, 45]
    pool = pool_of(sizes)
    retried = 0
    for seed in range(25):
        counts = counts_of(Dirichlet(beta=beta, minimum=20).deal(pool, 6, np.random.default_rng(seed)), pool)
        rng = np.random.default_rng(seed)
        shares = np.stack([rng.dirichlet([beta] * 6) for _ in sizes])
        while not agrees(counts, shares, sizes):
            assert (
                published(shares, sizes).sum(axis=1).min() < 20
            )  # only a draw that leaves someone too little is passed over
            shares = np.stack([rng.dirichlet([beta] * 6) for _ in sizes])
            retried += 1
        assert counts.sum(axis=1).min() >= 20
    assert retried > 0 or beta == 1.0


def test_least():
    assert least(60_000, 20, 0.25) == 40
    assert least(1000, 20, 0.25) == 25
    assert least(60_000, 20, 0.2) == 50
    assert least(60_000, 20, 0.0) == 1500
    assert least(20, 20, 0.25) == 1


def test_default_minimum_is_the_formula():
    for seed in range(3):
        deal = Dirichlet().deal(pool_of([300] * 10), 20, np.random.default_rng(seed))
        assert min(len(a) + len(b) for a, b in zip(deal.train, deal.test, strict=True)) >= 40


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 12),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any),
    beta=st.sampled_from([1e-6, 1e-3, 0.05, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 1000),
)
def test_a_full_client_gets_no_further_class(clients, sizes, beta, seed):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(clients, beta), size=len(sizes))
    cap = sum(sizes) / clients
    counts = capped_counts(shares, np.array(sizes), cap, beta, rng)
    np.testing.assert_array_equal(counts.sum(axis=1), sizes)
    before = np.cumsum(counts, axis=0) - counts
    assert (counts[before >= cap] == 0).all()


@settings(max_examples=100, deadline=None)
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(any), size=st.integers(0, 10_000))
def test_cut_adds_up_and_gives_nothing_for_nothing(shares, size):
    counts = cut(np.array(shares), size)
    assert counts.sum() == size
    assert (counts >= 0).all()
    assert (counts[np.array(shares) == 0] == 0).all()
    assert np.abs(counts - np.array(shares) / sum(shares) * size).max() <= 1 + 1e-6


def test_beta_decides_the_skew():
    pool = pool_of([500] * 10)
    for partition in (Dirichlet, DirichletPlain, DirichletClient):
        largest = []
        for beta in (0.1, 1.0, 100.0):
            counts = counts_of(partition(beta=beta).deal(pool, 10, np.random.default_rng(0)), pool)
            largest.append((counts.max(axis=1) / counts.sum(axis=1)).mean())
        assert largest[0] > 0.4 > largest[1] > 0.2 > largest[2]


def test_impossible_minimum_is_explained_with_numbers():
    with pytest.raises(FedTailorError, match=r"10 clients with at least 11 samples each need 110 samples, .* has 100"):
        Dirichlet(minimum=11).deal(pool_of([50, 50]), 10, np.random.default_rng(0))
    with pytest.raises(
        FedTailorError, match=r"out of 10000 .* 20 clients at least 9 of the 200 samples.*partition\.beta"
    ):
        DirichletPlain(minimum=9).deal(pool_of([100, 100]), 20, np.random.default_rng(0))


def test_plain_keeps_its_minimum_and_has_no_cap():
    pool = pool_of([300] * 5)
    largest = []
    for seed in range(10):
        counts = counts_of(DirichletPlain(beta=0.3).deal(pool, 10, np.random.default_rng(seed)), pool)
        assert counts.sum(axis=1).min() >= 10
        largest.append(counts.sum(axis=1).max())
    assert max(largest) > 150 + 300  # beyond the equal share by more than the one class a cap would let pass


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 15),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda s: sum(s) >= 15),
    beta=st.sampled_from([1e-6, 1e-3, 0.1, 10.0]),
    seed=st.integers(0, 1000),
)
def test_by_client_all_are_of_one_size(clients, sizes, beta, seed):
    pool = pool_of(sizes)
    counts = counts_of(DirichletClient(beta=beta).deal(pool, clients, np.random.default_rng(seed)), pool)
    np.testing.assert_array_equal(counts.sum(axis=0), sizes)
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_by_client_favours_no_client():
    """Dealing client by client would leave the last ones the leftovers, of another skew than the first ones' choice."""
    pool = pool_of([60] * 10)
    tops = []
    for seed in range(60):
        counts = counts_of(DirichletClient(beta=0.1).deal(pool, 10, np.random.default_rng(seed)), pool)
        tops.append(counts.max(axis=1) / counts.sum(axis=1))
    first, last = np.array(tops)[:, :5].mean(), np.array(tops)[:, 5:].mean()
    assert abs(first - last) < 0.05
