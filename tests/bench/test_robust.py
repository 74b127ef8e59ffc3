"""The page on hostile clients shows what robust.json holds, and that holds runs of the grid."""

from __future__ import annotations

import json
from pathlib import Path

from bench.robust import grid, page
from fedtailor import Config

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_is_made_of_the_numbers_beside_it():
    found = json.loads((RESULTS / "robust.json").read_text())
    assert (RESULTS / "robust.md").read_text() == page(found, "robust.png")
    assert set(found) <= set(grid())


def test_every_run_of_the_grid_can_be_typed():
    for words in list(grid())[::37]:
        config = Config.load(words=words.split())
        assert (config.attack is None) == ("attack=" not in words)
