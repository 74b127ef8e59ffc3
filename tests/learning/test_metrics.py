"""Metrics: by hand, where they are undefined, and which fit a task."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.learning.metrics import METRICS, confusion, metric, selected

THREE = Task((2,), 3)
ONE = Task((2,), 2, kind="binary")
MANY = Task((2,), 2, kind="multilabel")
REAL = Task((2,), 2, kind="regression")
Y = torch.tensor([0, 0, 1, 1, 2])
OUTPUTS = torch.tensor([[2.0, 0, 0], [0, 1, 0], [0, 3, 0], [0, 2, 1], [0, 1, 2]])  # one mistake: the second


def test_of_classes():
    assert METRICS["accuracy"].of(THREE, Y, OUTPUTS) == pytest.approx(0.8)
    assert METRICS["balanced_accuracy"].of(THREE, Y, OUTPUTS) == pytest.approx((0.5 + 1 + 1) / 3)
    assert METRICS["f1"].of(THREE, Y, OUTPUTS) == pytest.approx((2 / 3 + 4 / 5 + 1) / 3)
    p = OUTPUTS.double().softmax(1)
    assert METRICS["log_loss"].of(THREE, Y, OUTPUTS) == pytest.approx(-p[range(5), Y].log().mean().item())
    assert confusion(THREE, Y, OUTPUTS) == [[1, 1, 0], [0, 2, 0], [0, 0, 1]]


def test_auroc_is_the_chance_to_rank_a_positive_above_a_negative():
    chances = OUTPUTS.double().softmax(1)
    expected = []
    for c in range(3):
        ours, others = chances[c == Y, c], chances[c != Y, c]
        pairs = (ours[:, None] > others).double() + 0.5 * (ours[:, None] == others)
        expected.append(pairs.mean().item())
    assert METRICS["auroc"].of(THREE, Y, OUTPUTS) == pytest.approx(np.mean(expected))
    y, out = torch.tensor([1, 0, 1, 0]), torch.tensor([[3.0], [2.0], [1.0], [-1.0]])
    assert METRICS["auroc"].of(ONE, y, out) == pytest.approx(3 / 4)
    assert METRICS["auprc"].of(ONE, y, out) == pytest.approx((1 + 2 / 3) / 2)


def test_calibration_error_compares_confidence_and_accuracy_in_bins():
    out = torch.tensor([[math.log(0.9 / 0.1)]] * 4 + [[-math.log(0.65 / 0.35)]] * 2)
    y = torch.tensor([1, 1, 1, 0, 0, 0])  # 0.9 sure and right in 3 of 4; 0.65 sure and always right
    assert METRICS["calibration_error"].of(ONE, y, out) == pytest.approx((4 * 0.15 + 2 * 0.35) / 6)


def test_of_several_labels():
    y, out = torch.tensor([[1.0, 0], [1, 1], [0, 1]]), torch.tensor([[2.0, 1], [1, 3], [-1, -2]])
    assert METRICS["f1"].of(MANY, y, out) == pytest.approx((1 + 0.5) / 2)
    assert METRICS["accuracy"].of(MANY, y, out) == pytest.approx(1 / 3)
    assert METRICS["auroc"].of(MANY, y, out) == pytest.approx((1 + 0.5) / 2)


def test_of_numbers():
    y, out = torch.tensor([[1.0, 2], [3, 5], [2, 2]]), torch.tensor([[1.0, 3], [1, 5], [2, 2]])
    assert METRICS["mae"].of(REAL, y, out) == pytest.approx(3 / 6)
    assert METRICS["rmse"].of(REAL, y, out) == pytest.approx(math.sqrt(5 / 6))
    assert METRICS["r2"].of(REAL, y, out) == pytest.approx(((1 - 4 / 2) + (1 - 1 / 6)) / 2)


def test_where_they_are_undefined():
    same = torch.zeros(3, dtype=torch.long)
    assert math.isnan(METRICS["auroc"].of(THREE, same, OUTPUTS[:3]))
    assert math.isnan(METRICS["auprc"].of(THREE, same, OUTPUTS[:3]))
    assert math.isnan(METRICS["r2"].of(REAL, torch.ones(3, 2), torch.randn(3, 2)))
    assert math.isnan(METRICS["f1"].of(THREE, Y, OUTPUTS * math.nan))
    assert math.isnan(METRICS["rmse"].of(REAL, torch.ones(0, 2), torch.ones(0, 2)))


@pytest.mark.parametrize("name", [m.name for m in METRICS.values() if m.power])
def test_values_of_clients_pool_to_that_of_all_samples(name):
    found = METRICS[name]
    task = {"multiclass": THREE, "regression": REAL}[found.tasks[0]]
    y = Y if task is THREE else torch.randn(5, 2)
    outputs = OUTPUTS if task is THREE else torch.randn(5, 2)
    parts = [found.of(task, y[rows], outputs[rows]) for rows in (slice(0, 2), slice(2, 5))]
    assert found.pooled(parts, [2, 3]) == pytest.approx(found.of(task, y, outputs))


def test_a_function_of_the_users_is_a_metric():
    def largest_error(y, outputs):
        return np.abs(y - outputs).max()

    largest_error.lower_is_better = True
    mine = metric(largest_error)
    assert (mine.name, mine.better(1.0, 2.0)) == ("largest_error", True)
    assert mine.of(REAL, torch.zeros(2, 2), torch.tensor([[1.0, 2], [-3, 0]])) == 3


def test_the_metrics_of_a_run_begin_with_the_one_that_selects():
    names = lambda *given: [m.name for m in selected(*given)]  # noqa: E731
    assert names(THREE) == ["accuracy"]
    assert names(MANY) == ["f1"]
    assert names(REAL) == ["rmse"]
    assert names(THREE, ("auroc", "confusion")) == ["accuracy", "auroc"]
    assert names(ONE, ("f1",), "auroc") == ["auroc", "accuracy", "f1"]
    assert names(REAL, ("mae",), "r2") == ["r2", "mae"]


@pytest.mark.parametrize(
    ("task", "asked", "said"),
    [
        (REAL, ("auroc",), "'auroc' does not fit a regression task. Metrics that do: mae, rmse, r2"),
        (THREE, ("rocauc",), "There is no metric 'rocauc'"),
        (MANY, ("confusion",), "A confusion matrix needs classes"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(task, asked, said):
    with pytest.raises(FedTailorError, match=said):
        selected(task, asked)
