from __future__ import annotations

import math

import numpy as np
import pytest

from fedtailor.analysis.ranking import ranking
from fedtailor.report.ranks import ranks_chart, ranks_sheet


def blocks(values: dict[str, list[float]], clients: int = 10) -> dict:
    """Blocks in which all clients of a method have one value."""
    count = len(next(iter(values.values())))
    return {("f", seed): {name: np.full(clients, v[seed]) for name, v in values.items()} for seed in range(count)}


def test_mean_ranks_by_hand():
    found = ranking(blocks({"a": [0.9, 0.9, 0.5], "b": [0.8, 0.8, 0.6], "c": [0.8, 0.1, 0.1]}))
    assert found is not None
    assert list(found.names) == ["a", "b", "c"]
    assert found.ranks == pytest.approx(
        [(1 + 1 + 2) / 3, (2.5 + 2 + 1) / 3, (2.5 + 3 + 3) / 3]
    )  # a tie shares its ranks
    # q of Nemenyi's table for three methods is 2.343 (Demšar, 2006)
    assert found.difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 3)), abs=1e-3)


def test_lower_is_better_turns_the_order_round():
    found = ranking(blocks({"a": [3, 3, 3], "b": [2, 2, 2], "c": [1, 1, 1]}), lower_is_better=True)
    assert found is not None
    assert list(found.names) == ["c", "b", "a"]
    assert (found.low == found.high).all()  # every resample agrees


def test_the_interval_is_wide_where_clients_disagree():
    rng = np.random.default_rng(0)
    noisy = {("f", s): {n: rng.normal(size=8) for n in "abc"} | {"d": np.full(8, 9.0)} for s in range(5)}
    found = ranking(noisy)
    assert found is not None
    assert found.names[0] == "d"
    assert found.low[0] == found.high[0] == 1
    assert (found.high[1:] - found.low[1:] > 0.5).all()
    assert (found.low <= found.ranks).all()
    assert (found.ranks <= found.high).all()


def test_methods_within_the_critical_difference_are_joined_by_a_bar():
    apart = {"a": [0.9] * 20, "b": [0.8] * 20, "c": [0.1] * 20, "d": [0.05] * 20}
    found = ranking(blocks(apart))
    assert found is not None
    assert found.difference == pytest.approx(1.05, abs=0.01)  # so each only with its neighbour
    assert found.alike == [(0, 1), (1, 2), (2, 3)]
    assert len(ranks_chart(found).series) == 4
    assert ranks_sheet(found).rows[0] == ("a", "1.00", "1.00 to 1.00")


@pytest.mark.parametrize("values", [{"a": [1] * 5, "b": [2] * 5}, {"a": [1, 1], "b": [2, 2], "c": [3, 3]}])
def test_too_few_methods_or_blocks_have_no_ranking(values):
    assert ranking(blocks(values)) is None


def test_only_methods_of_all_blocks_are_ranked():
    some = blocks({"a": [1, 1, 1], "b": [2, 2, 2], "c": [3, 3, 3], "d": [4, 4, 4]})
    del some["f", 1]["d"]
    found = ranking(some)
    assert found is not None
    assert set(found.names) == {"a", "b", "c"}
