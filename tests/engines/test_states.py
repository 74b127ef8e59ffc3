"""States come back as they were put, in memory or from disk."""

from __future__ import annotations

import random

import torch

from fedtailor.engines.states import States


def state(number: int, entries: int = 100) -> dict[str, torch.Tensor]:
    return {"head": torch.full((entries,), float(number)), "step": torch.tensor(number)}  # 408 bytes


def test_only_so_many_bytes_stay_in_memory_and_nothing_is_lost():
    states = States(limit=2000)
    for i in range(50):
        states[i] = state(i)
        assert states.held <= 2000
    assert (len(states.warm), len(states.cold), len(states)) == (4, 46, 50)
    assert list(states) == list(range(50))
    for i in random.Random(0).sample(range(50), 50):
        assert torch.equal(states[i]["head"], torch.full((100,), float(i)))
        assert states[i]["step"].item() == i
        assert states[i]["step"].dtype == torch.int64
        assert states.held <= 2000


def test_a_state_put_away_again_takes_its_old_place_or_a_larger_one():
    states = States(limit=1000)
    for turn in range(5):
        for i in range(10):
            states[i] = state(i + 100 * turn)
    end = states._end
    assert end <= 10 * 408
    states[3] = state(7, entries=150)
    for i in range(10):
        assert i == 3 or states[i]["step"].item() == i + 400
    assert states[3]["head"].tolist() == [7.0] * 150
    assert states._end == end + 608


def test_the_one_used_last_stays_even_if_it_is_too_large_and_what_is_forgotten_is_gone():
    states = States(limit=100)
    states[0] = state(0)
    assert states[0] is states[0]
    states[1] = {}
    assert 1 in states
    assert states[1] == {}
    states[2] = state(2)
    del states[0]
    assert 0 not in states
    assert states.get(0) is None
    assert states.pop(2)["step"].item() == 2
    assert list(states) == [1]
    assert states.held == 0
