from __future__ import annotations

from collections import Counter

from fedtailor import Protocol
from fedtailor.experiment.sampling import select

CLIENTS = list(range(40))


def test_a_fixed_share_is_picked_without_repeats_and_by_the_seed_alone():
    protocol = Protocol(join=0.3, seed=2)
    rounds = [select(protocol, CLIENTS, t) for t in range(200)]
    assert all(len(set(s.picked)) == 12 and s.picked == sorted(s.picked) == s.replying for s in rounds)
    assert rounds[5] == select(Protocol(join=0.3, seed=2), CLIENTS, 5)
    assert len({tuple(s.picked) for s in rounds}) == 200
    often = Counter(i for s in rounds for i in s.picked)
    assert min(often.values()) > 30  # 60 are expected of each client


def test_a_range_draws_every_size_between_its_ends():
    sizes = {len(select(Protocol(join=(0.1, 0.2)), CLIENTS, t).picked) for t in range(200)}
    assert sizes == {4, 5, 6, 7, 8}


def test_at_least_one_client_takes_part():
    assert len(select(Protocol(join=0.001), CLIENTS, 1).picked) == 1


def test_dropouts_are_a_share_of_the_picked():
    rounds = [select(Protocol(dropout=0.25), CLIENTS, t) for t in range(200)]
    assert all(set(s.replying) <= set(s.picked) for s in rounds)
    assert 0.70 < sum(len(s.replying) for s in rounds) / (200 * 40) < 0.80
