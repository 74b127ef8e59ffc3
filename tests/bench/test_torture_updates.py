"""A reduced form of the attacks on updates: no promise is broken."""

from __future__ import annotations

from bench.torture import updates


def test_no_promise_about_updates_is_broken():
    results = updates.run(share=0.02)
    assert sum(result.tries for result in results) == len(results)
    assert [result.failures for result in results] == [()] * len(results)
    assert [result.promise.startswith("not promised") for result in results[-3:]] == [False, True, True]
