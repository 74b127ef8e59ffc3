"""Shards, owners and equal parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.partitions.iid import Iid
from fedtailor.data.partitions.natural import Natural
from fedtailor.data.partitions.shards import Shards
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError


def pool_of(y, **more):
    return Pool(np.zeros((len(y), 1), np.uint8), np.asarray(y), int(np.max(y)) + 1, **more)


def whole(deal):
    return [np.append(a, b) for a, b in zip(deal.train, deal.test, strict=True)]


def test_shards_hold_few_classes():
    pool = pool_of(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100)))
    parts = whole(Shards(shards=2).deal(pool, 50, np.random.default_rng(0)))
    assert {len(rows) for rows in parts} == {20}
    assert max(len(np.unique(pool.y[rows])) for rows in parts) == 2  # 100 shards of 10: none straddles two classes


@settings(max_examples=50, deadline=None)
@given(n=st.integers(30, 200), clients=st.integers(1, 10), shards=st.integers(1, 3), seed=st.integers(0, 100))
def test_shards_are_runs_of_the_sorted_labels(n, clients, shards, seed):
    rng = np.random.default_rng(seed)
    pool = pool_of(rng.integers(0, 7, n))
    parts = whole(Shards(shards=shards).deal(pool, clients, rng))
    assert np.ptp([len(rows) for rows in parts]) <= shards
    longest = -(-n // (clients * shards))
    present = np.bincount(pool.y)
    most = 2 + longest // max(1, present[present > 0].min())  # classes that fit in one shard
    assert all(len(np.unique(pool.y[rows])) <= shards * most for rows in parts)


def test_official_shards_test_on_the_labels_trained_on():
    rng = np.random.default_rng(0)
    y = np.append(np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 100))
    pool = pool_of(y, test=np.arange(6000) >= 5000)
    deal = Shards(shards=2, official=True).deal(pool, 20, rng)
    for train, test in zip(deal.train, deal.test, strict=True):
        assert not pool.test[train].any()
        assert pool.test[test].all()
        np.testing.assert_array_equal(np.bincount(y[train], minlength=10), 5 * np.bincount(y[test], minlength=10))


def test_shards_ask_for_what_there_is():
    with pytest.raises(FedTailorError, match="no official test part"):
        Shards(official=True).deal(pool_of([0, 1, 2, 3]), 2, np.random.default_rng(0))
    with pytest.raises(FedTailorError, match="need 12 shards, but there are only 10 samples"):
        Shards(shards=3).deal(pool_of(np.arange(10)), 4, np.random.default_rng(0))


def test_iid_parts_are_alike():
    pool = pool_of(np.repeat(np.arange(4), 500))
    for rows in whole(Iid().deal(pool, 5, np.random.default_rng(0))):
        assert len(rows) == 400
        assert np.bincount(pool.y[rows]).min() > 60


OWNER = np.repeat([2, 0, 1, 3], [8, 12, 4, 6])
PEOPLE = ("ann", "bob", "cem", "dee")


def test_natural_gives_owners_their_own():
    pool = pool_of(np.arange(30) % 3, owner=OWNER, owners=PEOPLE)
    for clients in (0, 4):
        deal = Natural().deal(pool, clients, np.random.default_rng(0))
        assert deal.names == PEOPLE
        assert [len(rows) for rows in whole(deal)] == [12, 4, 8, 6]
        assert [len(rows) for rows in deal.train] == [9, 3, 6, 4]
        for j, rows in enumerate(whole(deal)):
            assert (OWNER[rows] == j).all()


def test_natural_picks_owners_at_random():
    pool = pool_of(np.arange(30) % 3, owner=OWNER, owners=PEOPLE)
    picked = {Natural().deal(pool, 2, np.random.default_rng(seed)).names for seed in range(40)}
    assert len(picked) == 6


def test_natural_uses_the_official_part_only_if_everyone_has_both():
    each = np.arange(30) % 2 == 0
    pool = pool_of(np.arange(30) % 3, owner=OWNER, owners=PEOPLE, test=each)
    deal = Natural().deal(pool, 0, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(deal.test)), np.flatnonzero(each))
    random = Natural(official=False).deal(pool, 0, np.random.default_rng(0))
    assert [len(rows) for rows in random.train] == [9, 3, 6, 4]
    by_person = pool_of(np.arange(30) % 3, owner=OWNER, owners=PEOPLE, test=OWNER == 2)
    fallback = Natural().deal(by_person, 0, np.random.default_rng(0))
    assert [len(rows) for rows in fallback.train] == [9, 3, 6, 4]


def test_natural_refuses_what_is_not_there():
    with pytest.raises(FedTailorError, match=r"says who owns each sample.*table"):
        Natural().deal(pool_of([0, 1]), 2, np.random.default_rng(0))
    for clients in (-1, 5):
        with pytest.raises(FedTailorError, match=f"clients = {clients}, but the data set has 4 owners"):
            Natural().deal(pool_of(np.arange(30) % 3, owner=OWNER, owners=PEOPLE), clients, np.random.default_rng(0))
