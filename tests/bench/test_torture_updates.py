"""A reduced form of the attacks on updates: no promise is broken."""

from __future__ import annotations

import pytest

from bench.torture import takeovers, updates


@pytest.mark.slow
def test_no_promise_about_updates_is_broken():
    results = updates.run(share=0.02)
    assert sum(result.tries for result in results) == len(results)
    assert [result.failures for result in results] == [()] * len(results)
    assert [result.promise.startswith("not promised") for result in results[-3:]] == [False, True, True]


def test_no_update_takes_over_a_robust_mean():
    results = takeovers.run(share=0.02)
    assert [(result.tries, result.failures) for result in results] == [(1, ())] * 3
