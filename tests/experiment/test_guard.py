"""Which replies a server refuses: those that are not finite or far beyond the others, and no honest one."""

from __future__ import annotations

import pytest
import torch

from fedtailor.experiment.guard import faults
from fedtailor.learning import Reply

SENT = torch.zeros(50)


def replies(*lengths: float, name: str = "model") -> list[Reply]:
    """A reply of each length, all from the origin."""
    return [Reply(i, 10, {name: torch.full((50,), length / 50**0.5)}) for i, length in enumerate(lengths)]


def refused(*lengths: float, factor: float = 100.0, sent: bool = True, few: int = 5) -> list[int]:
    given = {i: {"model": SENT} if sent else {} for i in range(len(lengths))}
    return list(faults(replies(*lengths), given, factor, few))


@pytest.mark.parametrize("factor", [0.0, 100.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_what_is_not_finite_or_as_good_as_that_is_refused_however_few_replies_there_are(value, factor):
    spoilt = torch.ones(50)
    spoilt[7] = value
    assert list(faults([Reply(3, 10, {"model": spoilt})], {3: {"model": SENT}}, factor, 5)) == [3]


def test_the_distance_to_what_was_sent_is_measured_against_the_median():
    assert refused(1.0, 2.0, 3.0, 199.0) == []
    assert refused(1.0, 2.0, 3.0, 251.0) == [3]
    assert refused(1.0, 2.0, 3.0, 199.0, factor=50) == [3]
    assert refused(1.0, 2.0, 3.0, 1e6, factor=0) == []
    shifted = [Reply(i, 10, {"model": torch.full((50,), 1e4 + d)}) for i, d in enumerate((1.0, -1.0, 2.0))]
    assert faults(shifted, {i: {"model": torch.full((50,), 1e4)} for i in range(3)}, 100.0, 5) == {}


def test_an_honest_client_with_many_samples_may_move_in_proportion_to_them_up_to_a_limit():
    def judged(times: float, samples: int) -> list[int]:
        some = replies(1.0, 1.0, 1.0, times)
        some[3] = Reply(3, samples, some[3].payload)
        return list(faults(some, {i: {"model": SENT} for i in range(4)}, 100.0, 5))

    assert judged(101.0, 10) == [3]
    assert judged(900.0, 100) == []  # ten times the median's samples, ten times its steps
    assert judged(1100.0, 100) == [3]
    assert judged(9e3, 10**9) == []
    assert judged(1.1e4, 10**9) == [3]  # whoever says it has a billion samples is not believed


def test_a_client_that_still_learns_where_most_have_nothing_left_to_learn_stays_in():
    origin = torch.full((50,), 2.0)

    def judged(move: float) -> list[int]:
        moves = (1e-4, 1e-4, 1e-4, move)
        some = [Reply(i, 10, {"body": origin + m / 50**0.5}) for i, m in enumerate(moves)]
        return list(faults(some, {i: {"body": origin} for i in range(4)}, 100.0, 5))

    assert judged(10.0) == []  # what was sent is 14 long
    assert judged(20.0) == [3]


def test_fewer_than_three_replies_and_a_median_of_zero_only_have_to_be_finite():
    assert refused(1.0, 1e9) == []
    assert refused(0.0, 0.0, 1e9) == []
    assert refused(1.0, 1.0, 1e9) == [2]


def test_an_entry_that_was_not_sent_is_judged_by_its_size_and_more_leniently():
    assert refused(1.0, 2.0, 3.0, 1e4, sent=False) == []
    assert refused(1.0, 2.0, 3.0, 1e5, sent=False) == [3]


def test_numbers_for_each_class_or_client_may_differ_by_any_factor():
    assert refused(1.0, 2.0, 3.0, 1e9, sent=False, few=50) == []
    whole = [Reply(i, 10, {"labels": torch.full((90,), 10**i)}) for i in range(9)]
    assert faults(whole, {}, 100.0, 5) == {}


def test_a_reason_says_which_entry_and_how_far():
    found = faults(replies(1.0, 2.0, 3.0, 2e6), {i: {"model": SENT} for i in range(4)}, 100.0, 5)
    assert str(found[3]) == "its 'model' moved more than 100 times as far as the median (8e+05 times)"


def test_lengths_beyond_what_float32_can_square_are_compared_all_the_same():
    huge = [Reply(i, 10, {"model": torch.full((50,), v)}) for i, v in enumerate((1e13, 1e13, 1e13, 3e38))]
    assert list(faults(huge, {}, 100.0, 5)) == [3]
