"""A reduced form of `python -m bench.torture kills`: one method, few tries."""

from __future__ import annotations

import pytest

from bench.torture.kills import Study, disturbed, workplace


@pytest.mark.slow
def test_whatever_happens_to_a_run_its_folder_ends_as_if_it_had_not():
    with workplace():
        study = Study.of("fedavg-ft", "whole/fedavg-ft", "method.ft_epochs=1", "rounds=2")
        results = list(disturbed([study], [study], 0.02))
    assert all(result.tries >= 1 for result in results)
    assert [failure for result in results for failure in result.failures] == []
