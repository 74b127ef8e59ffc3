from __future__ import annotations

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("method", "first"), [("fedavg", 1), ("fedrep", 3)])
def test_the_numbers_beside_pfllib_are_those_of_the_file(method: str, first: int) -> None:
    rows = json.loads((DOCS / "results" / f"pfllib-{method}.json").read_text())["rows"]
    page = (DOCS / "coming-from.md").read_text()
    table = page[page.index("| | FedAvg: seconds per round") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    shown = [(line[first], line[first + 1]) for line in cells if line[first]]
    assert shown == [(f"{row['seconds']:.2f}", f"{row['accuracy']:.2f}") for row in rows.values()]
