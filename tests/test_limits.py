"""Limits: the same everywhere, told with the way to raise them."""

from __future__ import annotations

import pytest

from fedtailor import FedTailorError, Simulation
from fedtailor.limits import check_bytes, check_count


def test_a_limit_is_told_with_the_variable_that_raises_it(monkeypatch):
    check_bytes(4 * 10**9, "a file")
    with pytest.raises(FedTailorError, match=r"a file: 6\.5 GB where the limit is 4 GB.*FEDTAILOR_MAX_GB=7\."):
        check_bytes(6_500_000_000, "a file")
    with pytest.raises(
        FedTailorError, match=r"2,147,483,649 classes where the limit is 100,000.*FEDTAILOR_MAX_CLASSES="
    ):
        check_count(2**31 + 1, "CLASSES", "y")
    monkeypatch.setenv("FEDTAILOR_MAX_GB", "7")
    check_bytes(6_500_000_000, "a file")


@pytest.mark.parametrize("said", ["0", "-1", "lots", "nan", "1e3", "9" * 30])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, said):
    monkeypatch.setenv("FEDTAILOR_MAX_GB", said)
    with pytest.raises(FedTailorError, match=r"FEDTAILOR_MAX_GB=.*is not a limit"):
        check_bytes(1, "a file")


def test_a_net_of_absurd_size_is_refused_before_it_is_made(federation):
    from fedtailor.nets.mlp import MLP

    with pytest.raises(FedTailorError, match=r"The net MLP\(hidden=\(65536, 65536\)\): 17\.2 GB"):
        Simulation(federation, "fedavg", MLP(hidden=(65536, 65536)), engine="inline")
