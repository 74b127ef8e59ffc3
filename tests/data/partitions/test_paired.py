import numpy as np
import pytest

from fedtailor.data.partitions.paired import Paired
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError


def pool_of(train, test=None):
    """Classes of these sizes in the training part and (where given) in the official test part."""
    y = np.concatenate([np.repeat(np.arange(len(sizes)), sizes) for sizes in (train, test) if sizes is not None])
    flag = None if test is None else np.arange(len(y)) >= sum(train)
    return Pool(np.zeros((len(y), 1), np.uint8), y, len(train), test=flag)


def counts_of(parts, pool):
    return np.stack([np.bincount(pool.y[rows], minlength=pool.classes) for rows in parts])


def test_cifar100_as_in_the_paper():
    pool = pool_of([500] * 100, [100] * 100)
    deal = Paired(beta=0.1).deal(pool, 20, np.random.default_rng(0))
    train, test = counts_of(deal.train, pool), counts_of(deal.test, pool)
    assert len(deal.server) == 5000
    assert train.sum() == 45_000
    assert test.sum() == 10_000
    assert train.min() >= 2  # of every class at every client
    assert test.min() >= 2
    assert not pool.test[deal.server].any()
    assert not any(pool.test[rows].any() for rows in deal.train)
    assert all(pool.test[rows].all() for rows in deal.test)
    correlation = [np.corrcoef(train[j], test[j])[0, 1] for j in range(20)]
    assert np.mean(correlation) > 0.9
    assert min(correlation) > 0.5
    # The cap counts what was dealt by shares: once at an equal part, a client gets no further class.
    before = np.cumsum(train - 2, axis=1) - (train - 2)
    assert ((train - 2)[before >= 50_000 / 20] == 0).all()


def test_a_class_too_small_to_reserve_is_dealt_round_robin_from_client_0():
    pool = pool_of([100, 7, 100], [50, 3, 50])
    deal = Paired(server_share=0.0).deal(pool, 5, np.random.default_rng(0))
    assert counts_of(deal.train, pool)[:, 1].tolist() == [2, 2, 1, 1, 1]
    assert counts_of(deal.test, pool)[:, 1].tolist() == [1, 1, 1, 0, 0]


def test_without_an_official_test_part_a_share_of_each_class():
    pool = pool_of([40, 80, 120])
    deal = Paired(test_share=0.25).deal(pool, 3, np.random.default_rng(0))
    assert counts_of(deal.test, pool).sum(axis=0).tolist() == [10, 20, 30]
    assert len(deal.server) == 180 - int(0.9 * 180)


def test_the_server_takes_no_more_than_the_reserve_leaves():
    pool = pool_of([12, 12], [6, 6])
    deal = Paired(server_share=0.5).deal(pool, 5, np.random.default_rng(0))
    assert len(deal.server) == 4  # 12 asked for, 2 · 12 - 2 · 5 · 2 left
    assert counts_of(deal.train, pool).tolist() == [[2, 2]] * 5


def test_no_reserve_as_for_caltech():
    pool = pool_of([400] * 5, [100] * 5)
    deal = Paired(reserve=0, beta=0.3).deal(pool, 5, np.random.default_rng(3))
    assert counts_of(deal.train, pool).min() == 0
    assert counts_of(deal.train, pool).sum() == 1800


def test_a_client_left_without_samples_is_refused():
    with pytest.raises(FedTailorError, match=r"3 of 13 clients would get no training sample.*lower partition\.reserve"):
        Paired(server_share=0.0).deal(pool_of([10, 10], [10, 10]), 13, np.random.default_rng(0))


@pytest.mark.parametrize(("samples", "reserve", "warned"), [(100, 2, False), (15, 2, True), (15, 0, False)])
def test_a_reserve_that_hides_the_skew_is_told(caplog, samples, reserve, warned):
    pool = pool_of([500] * 4, [samples] * 4)
    Paired(reserve=reserve).deal(pool, 5, np.random.default_rng(0))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == warned
    assert all("deals 67 % of the 60 samples of a part to all clients alike" in text for text in told)
