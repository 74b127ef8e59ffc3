import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.partitions.pathological import Pathological
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError


def counts_of(clients, sizes, seed=0, **options):
    y = np.repeat(np.arange(len(sizes)), sizes)
    pool = Pool(np.zeros((len(y), 1), np.uint8), y, len(sizes))
    deal = Pathological(**options).deal(pool, clients, np.random.default_rng(seed))
    return np.stack(
        [np.bincount(y[np.append(a, b)], minlength=len(sizes)) for a, b in zip(deal.train, deal.test, strict=True)]
    )


@pytest.mark.parametrize("balanced", [False, True])
def test_neighbours_share_their_classes_as_on_cifar10(balanced):
    counts = counts_of(20, [6000] * 10, balanced=balanced)
    for client in range(20):
        group = client // 4
        assert np.flatnonzero(counts[client]).tolist() == [2 * group, 2 * group + 1]
    np.testing.assert_array_equal(counts.sum(axis=0), 6000)
    if balanced:
        assert set(counts[counts > 0]) == {1500}
    else:
        for k in range(10):
            pieces = counts[:, k][counts[:, k] > 0]
            assert (pieces[:3] >= 150).all()  # a tenth of an equal piece
            assert (pieces[:3] < 1500).all()
            assert pieces[3] == 6000 - pieces[:3].sum()


def test_ten_of_a_hundred_classes():
    counts = counts_of(20, [600] * 100, classes_per_client=10)
    assert ((counts > 0).sum(axis=1) == 10).all()
    assert ((counts > 0).sum(axis=0) == 2).all()
    assert np.flatnonzero(counts[0]).tolist() == np.flatnonzero(counts[1]).tolist() == list(range(10))


def test_no_class_is_left_over_when_the_numbers_do_not_divide():
    counts = counts_of(16, [600] * 10)  # ceil(16 · 2 / 10) = 4 takers a class would leave classes 8 and 9 to nobody
    np.testing.assert_array_equal(counts.sum(axis=0), 600)
    assert set((counts > 0).sum(axis=0)) <= {3, 4}
    assert ((counts > 0).sum(axis=1) <= 2).all()


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 12),
    sizes=st.lists(st.integers(12, 60), min_size=1, max_size=10),
    per_client=st.integers(1, 10),
    balanced=st.booleans(),
    seed=st.integers(0, 100),
)
def test_everything_is_dealt_and_quotas_hold(clients, sizes, per_client, balanced, seed):
    if per_client > len(sizes) or clients * per_client < len(sizes):
        with pytest.raises(FedTailorError, match="classes"):
            counts_of(clients, sizes, seed, classes_per_client=per_client, balanced=balanced)
        return
    counts = counts_of(clients, sizes, seed, classes_per_client=per_client, balanced=balanced)
    np.testing.assert_array_equal(counts.sum(axis=0), sizes)
    assert ((counts > 0).sum(axis=1) <= per_client).all()
    assert counts.sum(axis=1).min() >= 1


def test_impossible_requests_say_what_to_change():
    with pytest.raises(FedTailorError, match=r"2 clients with 2 classes each cannot hold 10 classes.*at least 5"):
        counts_of(2, [50] * 10)
    with pytest.raises(FedTailorError, match="only 3 classes"):
        counts_of(4, [50] * 3, classes_per_client=4)
