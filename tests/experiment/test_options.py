"""What can be written as keyword arguments is what a config has."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.experiment.config import Settings, options_of
from fedtailor.experiment.options import ProtocolOptions, RunOptions


@pytest.mark.parametrize(("written", "cls"), [(ProtocolOptions, ft.Protocol), (RunOptions, Settings)])
def test_the_keywords_are_the_options_with_their_types(written, cls):
    hints = get_type_hints(cls)
    assert get_type_hints(written) == {name: hints[name] for name in options_of(cls)}


@pytest.mark.parametrize(
    ("function", "cls"), [(ft.run, Settings), (ft.compare, Settings), (ft.Simulation, ft.Protocol)]
)
def test_a_notebook_completes_them_with_their_defaults(function, cls):
    shown = inspect.signature(function).parameters
    assert set(options_of(cls)) <= set(shown)
    assert shown["rounds"].default == ft.Protocol().rounds
    assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())


def test_both_doors_have_the_same_defaults(federation):
    config = ft.Config.load().completed()
    simulation = ft.Simulation(ft.Config.load(words=["clients=3"]).federation(), engine="inline")
    assert simulation.method == config.method
    assert simulation.worker.modules.architecture == config.net.name == "cnn"
    assert ft.Simulation(federation, engine="inline").worker.modules.architecture == "mlp"  # fits plain numbers
    assert all(getattr(simulation.protocol, name) == getattr(config.settings, name) for name in options_of(ft.Protocol))


def test_reprs_show_what_differs_from_the_defaults(federation):
    assert repr(ft.FedRep(head_epochs=5)) == "FedRep(head_epochs=5)"
    assert repr(ft.FedRep()) == "FedRep()"
    assert repr(ft.Protocol(rounds=3, lr=0.5)) == "Protocol(rounds=3, lr=0.5)"
    simulation = ft.Simulation(federation, ft.FedRep(head_epochs=5), rounds=2, engine="inline")
    assert repr(simulation) == "Simulation: fedrep (head_epochs=5) on 4 clients, round 0 of 2\n  Protocol(rounds=2)"
    assert repr(federation).splitlines()[0] in federation._repr_html_()


def test_every_public_object_has_a_repr_that_says_what_it_is(federation):
    assert repr(ft.partitions).startswith("Registry('partition'): dirichlet, ")
    assert repr(ft.EarlyStopping(5)) == "EarlyStopping(5)"
    assert repr(ft.EarlyStopping(2, "loss", lower_is_better=True)) == "EarlyStopping(2, 'loss', lower_is_better=True)"
    assert repr(ft.Progress()) == "Progress()"
    numbers = np.arange(8, dtype=np.float32)
    assert repr(ft.Federation.from_clients([(numbers[:, None], numbers)])).startswith(
        "Federation: 1 clients, 1 target, "
    )
    with ft.Simulation(federation, "fedrep", rounds=1, batch=4, engine="inline").run() as simulation:
        size = 4 * simulation.server.state["body"].nbytes
        assert repr(simulation.server).startswith("Server: round 1, 4 clients; state: body (")
        assert (
            repr(simulation.traffic)
            == f"Traffic(down: body, 4 clients, {size:,} bytes; up: body, 4 clients, {size:,} bytes)"
        )


def test_clients_are_found_by_name_wherever_they_are_by_number(federation):
    with ft.Simulation(federation, "fedavg", rounds=1, batch=4, engine="inline").run() as simulation:
        name = federation.clients[2].name
        assert simulation.scores[name] is simulation.scores[2]
        assert simulation.traffic.up[name] is simulation.traffic.up[2]
        with pytest.raises(ft.FedTailorError, match="There is no client 'nobody'"):
            simulation.scores["nobody"]
