"""Work on all cores: the same numbers on any number of them."""

from __future__ import annotations

import pytest
import torch

from fedtailor.learning import cores
from fedtailor.learning.cores import on_all_cores
from fedtailor.learning.similarity import squared_distances
from fedtailor.learning.simplex import argmin_on_simplex


def test_results_come_in_the_order_of_the_pieces() -> None:
    assert on_all_cores(lambda n: n * n, range(100)) == [n * n for n in range(100)]


def test_a_failure_in_a_piece_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        on_all_cores(lambda n: 1 / n, [1, 0])


def test_numbers_do_not_depend_on_how_many_cores_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(300, 9000, generator=rng)
    h = torch.randn(600, 20, generator=rng, dtype=torch.float64)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(cores, "cores", lambda count=count: count)
        found.append((squared_distances(vectors), argmin_on_simplex(h @ h.T + torch.eye(600), h @ h.T)))
    assert (found[0][1] == 0).any()  # with none at zero there would be one system for all and nothing to divide
    for distances, shares in found[1:]:
        assert torch.equal(distances, found[0][0])
        assert torch.equal(shares, found[0][1])
