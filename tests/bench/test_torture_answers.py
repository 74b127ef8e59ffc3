"""A share of the mutated answers of `python -m bench.torture answers`."""

from __future__ import annotations

import pytest

from bench.torture.answers import run


@pytest.mark.slow
def test_no_mutated_answer_ends_a_run_or_passes_unseen():
    for result in run(0.05):
        assert result.tries >= 40
        assert result.failures == (), result.promise
