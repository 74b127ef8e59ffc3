"""The table of the stacked engine in the docs is the one that the bench wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.stacked import as_table, job_of, steps, write_page

BEGIN, END = "<!-- stacked: begin -->", "<!-- stacked: end -->"
DOCS = Path(__file__).parents[2] / "docs"


def test_the_docs_show_what_was_measured() -> None:
    found = json.loads((DOCS / "results" / "stacked.json").read_text())
    shown = (DOCS / "performance.md").read_text().partition(BEGIN + "\n")[2].partition(END)[0]
    assert shown == as_table(found)


def test_only_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    row = {"job": "table", "workers": 1, "method": "fedavg", "one_by_one": 2.0, "stacked": 0.25, "ratio": 8.04}
    write_page(page, "stacked", as_table({"turns": 1, "rows": [row]}))
    assert page.read_text().startswith(f"before\n{BEGIN}\n| job |")
    assert page.read_text().endswith(f"| table | 1 | fedavg | 2.000 | 0.250 | 8.0 |  |\n{END}\nafter\n")


@pytest.mark.slow
def test_steps_are_faster_stacked() -> None:
    assert steps(job_of("digits"), "fedavg") > 1.2
