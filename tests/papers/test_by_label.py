from __future__ import annotations

import numpy as np
import pytest

from fedtailor import Federation, Simulation
from fedtailor.papers.by_label import accuracy_by_label, telling_client


def test_accuracy_by_label_counts_every_label_of_all_clients(federation: Federation):
    simulation = Simulation(federation, "fedavg", "mlp", rounds=1).run()
    found = accuracy_by_label(simulation, simulation.personal(0))
    labels = np.concatenate([c.test.y.numpy() for c in federation.clients])
    counts = np.bincount(labels, minlength=federation.classes)
    right = sum(s.correct for s in simulation.scores.values())
    assert np.nansum(found * counts) == pytest.approx(right)


def test_the_telling_client_lacks_a_label_but_has_most_others():
    assert telling_client(np.array([[5, 5, 5], [9, 0, 0], [1, 1, 0]])) == 2
