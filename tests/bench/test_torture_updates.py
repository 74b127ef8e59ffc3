"""A reduced form of the attacks on updates: no promise is broken."""

from __future__ import annotations

from bench.torture import updates


def test_no_promise_about_updates_is_broken():
    results = updates.run(share=0.1)
    assert sum(result.tries for result in results) > 25
    assert [result.failures for result in results] == [()] * len(results)


def test_what_is_not_promised_is_told_apart():
    assert "not promised" in updates.run(share=0.03)[-1].promise
