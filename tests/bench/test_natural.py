"""The page of natural federations: numbers as the runs gave them, means and counts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.natural import able, by_client, numbers_of, page
from fedtailor import Simulation


def runs(means: list[float], pooled: list[float], clients: list[list[float]]) -> list[dict]:
    rows = zip(means, pooled, clients, strict=True)
    return [{"mean": mean, "pooled": value, "clients": own} for mean, value, own in rows]


def test_means_over_clients_pooled_values_and_who_is_worse_off():
    found = {
        "local": runs([0.5, 0.7], [0.5, 0.6], [[0.4, 0.7, math.nan], [0.6, 0.7, math.nan]]),
        "fedavg": runs([0.7, 0.9], [0.5, 0.5], [[0.4, 0.9, math.nan], [0.4, 0.9, math.nan]]),
    }
    text = page({"har": found})
    assert "| fedavg | 80.00 ± 10.00 | 50.00 ± 0.00 | +20.00 | 1 |" in text
    assert "| local | 60.00 ± 10.00 | 55.00 ± 5.00 | +0.00 | 0 |" in text
    assert text.index("| fedavg |") < text.index("| local |")
    assert "2 people of 3 where the metric is defined" in text
    assert "1 of 1 methods are better than training alone in the mean over people; the best is fedavg." in text
    errors = page({"chem97": found})  # lower is better
    assert "| fedavg | 0.8000 ± 0.1000 | 0.5000 ± 0.0000 | -0.2000 | 1 |" in errors
    assert errors.index("| local |") < errors.index("| fedavg |")


def test_a_client_counts_in_the_seeds_in_which_it_has_a_value():
    found = by_client(runs([0, 0], [0, 0], [[0.5, math.nan, math.nan], [1.0, 0.25, math.nan]]))
    np.testing.assert_equal(found, [0.75, 0.25, math.nan])


def test_numbers_are_those_of_the_last_evaluation(federation):
    simulation = Simulation(federation, "fedavg", "mlp", rounds=2, eval_every=2)
    found = numbers_of("accuracy", simulation)
    assert found["mean"] == pytest.approx(np.mean(found["clients"]))
    assert found["pooled"] == simulation.metrics[-1]["accuracy"]


def test_methods_fit_the_task():
    fits = able("regression")
    assert fits[0] == "local"
    assert {"fedavg", "ditto"} <= set(fits)
    assert not {"fedproto", "perada"} & set(fits)
