"""A preset small enough to run: PGFedSplit's ablation on the embedded digits, one round each."""

from __future__ import annotations

import pytest

from fedtailor.papers.presets import Preset, find
from fedtailor.papers.scale import Scale

TINY = "rounds=2,clients=3,epochs=1,seeds=1,data=digits,data.fraction=0.1,net=mlp,net.hidden=[8],partition=iid,batch=64"


def shrunk(name: str, text: str) -> Preset:
    preset = find(name)
    return Scale.parse(text, preset).shrunk(preset)


@pytest.fixture
def ablation() -> Preset:
    return shrunk("pgfedsplit/fig5", TINY)
