"""Every row of every table can be run."""

from __future__ import annotations

import pytest

from fedtailor import Config
from fedtailor.papers import overrides_of, published

ROWS = sorted({(row.paper, row.method) for row in published()})


def test_the_numbers_are_all_there():
    assert len([row for row in published() if row.paper != "FLamby"]) == 970
    assert len([row for row in published() if row.paper == "FLamby"]) == 7 * 4
    best = [r for r in published() if r.paper == "PGFedSplit" and r.method == "PGFedSplit" and r.dataset == "CIFAR10"]
    assert {r.value for r in best} >= {"77.14"}


@pytest.mark.parametrize(("paper", "method"), ROWS)
def test_a_published_method_resolves_to_one_here(paper, method):
    config = Config.load(words=overrides_of(paper, method))
    assert config.method.up or config.method.name == "local"
