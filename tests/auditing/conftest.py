"""Digits dealt to six clients, most of whom lack some classes, and a run of some rounds on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import fedtailor as ft
from fedtailor.auditing.subject import Subject

WORDS = ("data=digits", "data.fraction=0.4", "clients=6", "partition=dirichlet", "engine=inline", "net.hidden=32")


@cache
def audited(method: str = "fedavg", net: str = "mlp", *, run: bool = True, **settings: Any) -> Subject:
    from fedtailor.experiment.run import simulation_of

    given = {"rounds": 2, **settings}
    words = [*WORDS, f"method={method}", f"net={net}", *(f"{key}={value}" for key, value in given.items())]
    simulation = simulation_of(ft.Config.load(words=words))
    if run:
        simulation.run()
    return Subject(simulation, simulation.personal)


@pytest.fixture
def subject_of() -> Callable[..., Subject]:
    return audited
