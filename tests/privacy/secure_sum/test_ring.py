from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.errors import FedTailorError
from fedtailor.privacy.secure_sum.ring import FixedPoint, OutOfRange, from_tensor, to_tensor, total


@pytest.mark.parametrize(("bound", "heaviest", "clients"), [(1.0, 1, 2), (1024.0, 2**20, 20), (3.7, 12345, 999)])
def test_fraction_is_the_largest_for_which_no_sum_can_overflow(bound: float, heaviest: int, clients: int) -> None:
    fraction = FixedPoint(bound, heaviest, clients).fraction

    def most(bits: int) -> Fraction:
        return clients * (heaviest * Fraction(bound) * 2**bits + Fraction(1, 2))

    assert most(fraction) < 2**63 <= most(fraction + 1)


def test_extreme_values_of_all_clients_add_up_without_overflow() -> None:
    form = FixedPoint(8.0, 1000, 7)
    for extreme in (8.0, -8.0):
        encoded = form.encode(torch.tensor([extreme], dtype=torch.float64), 1000)
        assert form.decode(total([encoded] * 7), 7000).tolist() == [extreme]


def test_too_many_clients_for_the_bound_are_refused_beforehand() -> None:
    with pytest.raises(FedTailorError, match="would leave 13 bits after the binary point, and 16 are needed"):
        FixedPoint(2.0**20, 2**20, 1024 - 1)


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=6), st.integers(1, 50))
def test_weighted_sum_equals_the_sum_of_rounded_fractions(values: list[float], weight: int) -> None:
    form = FixedPoint(4.0, 50, len(values))
    encoded = [form.encode(torch.tensor([v]), weight) for v in values]
    exact = sum(round(Fraction(v) * weight * 2**form.fraction) for v in values)  # Python rounds ties to even as well
    assert int(total(encoded).view(np.int64)[0]) == exact
    error = abs(Fraction(exact, 2**form.fraction) - sum(Fraction(v) * weight for v in values))
    assert error <= Fraction(len(values), 2 ** (form.fraction + 1))


@pytest.mark.parametrize(
    ("value", "reason"),
    [(4.5, "of size 4.5"), (-9.0, "of size 9"), (float("nan"), "not finite"), (float("inf"), "not")],
)
def test_values_outside_the_declared_range_are_refused(value: float, reason: str) -> None:
    with pytest.raises(OutOfRange, match=rf"{reason}.*up to 4 \(privacy.bound\)"):
        FixedPoint(4.0, 1, 2).encode(torch.tensor([0.0, value]))


def test_a_weight_beyond_the_heaviest_is_refused() -> None:
    with pytest.raises(OutOfRange, match="its weight is 11, and 10 is the largest"):
        FixedPoint(4.0, 10, 2).encode(torch.zeros(1), 11)


def test_ring_elements_travel_bit_by_bit() -> None:
    vector = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert to_tensor(vector).tolist() == [0, 1, -(2**63), -1]
    assert from_tensor(to_tensor(vector)).tolist() == vector.tolist()
