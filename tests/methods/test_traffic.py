"""Bytes that travel, against the formulas of the papers' tables: Σ parameters in all, of which a share is the body."""

from __future__ import annotations

import pytest

from fedtailor import Simulation
from fedtailor.methods import methods
from fedtailor.nets.mlp import MLP

WIDTH, CLASSES, INPUTS = 6, 3, 5
BODY = (INPUTS * WIDTH + WIDTH) * 4
HEAD = (WIDTH * CLASSES + CLASSES) * 4
ALL = BODY + HEAD

WHOLE = (
    "fedavg",
    "fedprox",
    "per-fedavg",
    "pfedme",
    "ditto",
    "apfl",
    "fedphp",
    "fedala",
    "fedah",
    "fedrod",
    "fedavg-ft",
    "fedprox-ft",
)
BODIES = ("fedper", "fedrep", "fedbabu", "fedafk")


def per_client(federation, method) -> dict[str, float]:
    """Bytes of one steady round by entry, up and down together, for each client."""
    simulation = Simulation(federation, method, MLP(hidden=(WIDTH,)), rounds=3)
    for _ in range(3):
        simulation.step()
    found: dict[str, float] = {}
    for entry in simulation.ledger.last:
        found[entry.name] = found.get(entry.name, 0) + entry.bytes / len(federation.clients)
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_both_ways(federation, name):
    assert sum(per_client(federation, name).values()) == 2 * ALL


@pytest.mark.parametrize("name", BODIES)
def test_bodies_only(federation, name):
    assert per_client(federation, name) == {"body": 2 * BODY}


def test_heads_only(federation):
    assert per_client(federation, "lg-fedavg") == {"head": 2 * HEAD}


def test_several_models_down_and_one_up(federation):
    found = per_client(federation, methods.build("fedfomo", {"M": 2}))
    models = {name: size for name, size in found.items() if size >= ALL}
    assert sum(models.values()) == (1 + 2) * ALL
    assert sum(found.values()) - sum(models.values()) < 100  # which models they are, and what they are worth


def test_one_cloud_model_down_and_one_up(federation):
    assert sum(per_client(federation, "fedamp").values()) == 2 * ALL


def test_prototypes_only(federation):
    total, prototypes = sum(per_client(federation, "fedproto").values()), CLASSES * WIDTH * 4
    assert 2 * prototypes <= total <= 2 * (prototypes + CLASSES * 8)  # and how many samples, or which classes are known


def test_alone_nothing_travels(federation):
    assert per_client(federation, "local") == {}
