"""What leaves a client is known for every method, in the code and in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtailor.methods import methods
from fedtailor.privacy.reveals import LEARNT, learnt

GUIDE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()


@pytest.mark.parametrize("name", sorted(methods.classes))
def test_it_is_told_what_a_server_learns_from_each_method(name):
    method = methods.classes[name]
    assert set(learnt(method)) == set(method.up)
    entries = ", ".join(method.up) or "nothing"
    assert f"| `{name}` | {entries} |" in GUIDE


def test_the_guide_explains_every_entry():
    for entry, meaning in LEARNT.items():
        assert f"| {entry} | {meaning} |" in GUIDE
