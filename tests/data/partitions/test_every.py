"""What holds for every partition."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtailor.data.partitions  # noqa: F401  (registers them)
from fedtailor.data.partition import partitions
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError
from fedtailor.registry import options

# Options under which small random pools can be dealt.
EASY = {
    "dirichlet": {"minimum": 1, "beta": 5.0},
    "dirichlet-plain": {"minimum": 1, "beta": 5.0},
    "dirichlet-client": {},
    "iid": {},
    "natural": {},
    "paired": {"beta": 5.0},
    "pathological": {"classes_per_client": 3},
    "shards": {},
}
NAMES = sorted(EASY)


def pool_of(y, classes, clients, *, official=True):
    n = len(y)
    return Pool(
        np.arange(n, dtype=np.int32)[:, None],
        y,
        classes,
        owner=np.arange(n) % clients,
        owners=tuple(f"site {i}" for i in range(clients)),
        test=np.arange(n) % 5 < 2 if official else None,
    )


def dealt(name, pool, clients, seed=0, **options):
    return partitions.build(name, {**EASY[name], **options}).deal(pool, clients, np.random.default_rng(seed))


def test_all_are_registered():
    assert sorted(partitions.classes) == NAMES


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 6),
    sizes=st.lists(st.integers(20, 60), min_size=3, max_size=6),
    test_share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]),
    official=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_sample_once_and_everyone_can_train(name, clients, sizes, test_share, official, seed):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    pool = pool_of(y, len(sizes), clients, official=official)
    more = {"classes_per_client": len(sizes)} if name == "pathological" else {}
    if name == "paired":
        test_share = min(test_share, 0.5)  # of 20 samples, 2 would be left to reserve for up to 6 clients
    deal = dealt(name, pool, clients, seed, test_share=test_share, **more)
    rows = np.concatenate([*deal.train, *deal.test, deal.server])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(y)))
    assert len(deal.train) == len(deal.test) == clients
    assert min(map(len, deal.train)) > 0


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("paired", "natural")])
@pytest.mark.parametrize("test_share", [0.0, 0.25, 0.9])
def test_test_share_of_each_client(name, test_share):
    deal = dealt(name, pool_of(np.arange(600) % 6, 6, 4, official=False), 4, test_share=test_share)
    for train, test in zip(deal.train, deal.test, strict=True):
        n = len(train) + len(test)
        assert len(test) == pytest.approx(test_share * n, abs=1)
        assert len(train) == max(1, int(np.floor(round((1 - test_share) * n, 6))))


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name):
    pool = pool_of(np.arange(400) % 4, 4, 5, official=name == "paired")
    one, same, other = (dealt(name, pool, 5, seed) for seed in (1, 1, 2))
    for a, b in zip(one.train + one.test, same.train + same.test, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(one.train, other.train, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_split_is_not_the_pools_order(name):
    pool = pool_of(np.repeat(np.arange(4), 100), 4, 2, official=False)
    for train, test in zip(*(lambda d: (d.train, d.test))(dealt(name, pool, 2)), strict=True):
        assert train.max() > test.min()
        assert test.max() > train.min()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "natural"])
def test_impossible_numbers_of_clients(name):
    pool = pool_of(np.arange(12) % 3, 3, 2)
    for clients in (0, -3):
        with pytest.raises(FedTailorError, match="at least one client"):
            dealt(name, pool, clients)
    with pytest.raises(FedTailorError, match=r"more clients \(13\) than samples \(12\)"):
        dealt(name, pool, 13)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("dirichlet", {"beta": 0}),
        ("dirichlet", {"beta": -1}),
        ("dirichlet", {"minimum": 0}),
        ("dirichlet-plain", {"beta": 0.0}),
        ("dirichlet-client", {"beta": float("nan")}),
        ("paired", {"reserve": -1}),
        ("paired", {"server_share": 1.0}),
        ("pathological", {"classes_per_client": 0}),
        ("shards", {"shards": 0}),
        ("iid", {"test_share": 1.0}),
    ],
)
def test_bad_options_are_refused_from_config_and_from_python(name, bad):
    (key,) = bad
    with pytest.raises(FedTailorError, match=f"partition.{key} = "):
        partitions.build(name, bad)
    with pytest.raises(FedTailorError, match=f"partition.{key} = "):
        partitions.find(name)(**bad)


@pytest.mark.parametrize("name", NAMES)
def test_is_described(name):
    cls = partitions.find(name)
    assert cls.__doc__
    assert not cls.__doc__.startswith(cls.__name__ + "(")
    assert cls.paper or name == "iid"
    assert all(option.meaning for option in options(cls))
    assert dataclasses.is_dataclass(cls)


@pytest.mark.parametrize("name", NAMES)
def test_a_large_deal_takes_about_a_second(name):
    pool = pool_of(np.arange(100_000) // 1000, 100, 1000)
    easy = {"reserve": 0} if name == "paired" else {}
    start = time.perf_counter()
    dealt(name, pool, 1000, **easy)
    assert time.perf_counter() - start < 3
