"""The table of promises in the docs is the one that the torture wrote."""

from __future__ import annotations

from pathlib import Path

from bench.torture import Result, read_results, table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_docs_show_what_was_measured_and_nothing_failed():
    results = read_results((DOCS / "results" / "torture.json").read_text())
    assert set(results) == {"configs", "files", "answers", "updates", "takeovers", "kills", "network"}
    shown = (DOCS / "reliability.md").read_text().partition("<!-- torture -->\n")[2].partition("\n<!-- /torture -->")[0]
    assert shown == table(results)
    assert [failure for found in results.values() for result in found for failure in result.failures] == []


def test_a_broken_promise_is_counted():
    result = Result.of("nothing fails", ["", "it did", ""])
    assert (result.tries, result.failures) == (3, ("it did",))
    assert table({"part": [result]}).endswith("| part | nothing fails | 3 | 1 |")
