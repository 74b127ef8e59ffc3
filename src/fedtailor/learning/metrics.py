"""Metrics by name, of a net's outputs and the labels of one client or of all clients together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.data.task import CLASSES, KINDS, LABELS, Kind, Task
from fedtailor.errors import FedTailorError, nearest

Asked = str | Callable[[np.ndarray, np.ndarray], float]  # a metric's name, or a function of labels and outputs
Value = Callable[[Task, np.ndarray, np.ndarray], float]  # of a task, labels and outputs; NaN where it is undefined

PYTHON = "python:"  # prefix of the name of a function, in a config
CONFUSION = "confusion"  # requested like a metric; a table per client, not a number
BINS = 15  # of confidence, for the calibration error


@dataclass(frozen=True)
class Metric:
    """One number computed from outputs (n, outputs) and labels.

    `power` tells how to pool the values of several clients exactly: the mean over samples of value**power, then its root. If it is 0,
    the pooled value has to be computed from all outputs.
    """

    name: str
    value: Value
    tasks: tuple[Kind, ...] = KINDS
    lower_is_better: bool = False
    power: int = 0
    bounds: tuple[float, float] = (0.0, 1.0)

    def __reduce__(self) -> Any:
        """Pickle a known metric by its name, for workers that are started as new processes."""
        return (metric, (self.name,)) if METRICS.get(self.name) is self else super().__reduce__()

    def of(self, task: Task, y: Tensor, outputs: Tensor) -> float:
        """Return the value for these labels and outputs; NaN if it is undefined or an output is not finite."""
        if not len(y) or not bool(outputs.isfinite().all()):
            return math.nan
        labels = y if task.kind in CLASSES else y.double()
        value = self.value(task, labels.cpu().numpy(), outputs.cpu().double().numpy())
        return value if math.isfinite(value) else math.nan

    def pooled(self, values: Sequence[float], totals: Sequence[int]) -> float:
        """Return the value over all samples, from clients' values and numbers of samples; NaN if it does not follow from them."""
        if not self.power or not totals:
            return math.nan
        return float(np.average(np.power(values, self.power), weights=totals) ** (1 / self.power))

    def better(self, one: float, other: float) -> bool:
        return one < other if self.lower_is_better else one > other


def selected(task: Task, asked: Sequence[Asked] = (), select_by: str = "") -> tuple[Metric, ...]:
    """Return the metrics of a run; the first one selects rounds and ranks methods.

    Accuracy is always included if a sample has one class. Raise a FedTailorError for a metric that does not exist or fit the task.
    """
    names = [a for a in asked if a != CONFUSION]
    own = {m.name: m for m in map(metric, names)}
    always = ["accuracy"] if task.kind in CLASSES else []
    first = own.get(select_by) or metric(select_by or task.metric)
    found = {m.name: m for m in (first, *map(metric, always), *own.values())}
    for m in found.values():
        if task.kind not in m.tasks:
            raise FedTailorError(
                f"The metric '{m.name}' does not fit a {task.kind} task. Metrics that do: {', '.join(_fitting(task))}."
            )
    if CONFUSION in asked and task.kind not in CLASSES:
        raise FedTailorError(f"A confusion matrix needs classes, but this is a {task.kind} task.")
    return tuple(found.values())


def metric(asked: Asked) -> Metric:
    """Return the metric of this name, or one made from a function f(labels, outputs) of NumPy arrays and named after it.

    Larger values of a function are better, unless it has a true attribute `lower_is_better`.
    """
    if isinstance(asked, str):
        if asked.startswith(PYTHON):
            return _function_elsewhere(asked.removeprefix(PYTHON))
        if asked not in METRICS:
            raise FedTailorError(
                f"There is no metric '{asked}'.{nearest(asked, METRICS)} Known: {', '.join((*METRICS, CONFUSION))}."
            )
        return METRICS[asked]
    name = getattr(asked, "__name__", type(asked).__name__)
    lower = bool(getattr(asked, "lower_is_better", False))
    return Metric(name, _Own(asked), lower_is_better=lower, bounds=(-math.inf, math.inf))


@dataclass(frozen=True)
class _Own:
    """A user's function of labels and outputs."""

    function: Callable[[np.ndarray, np.ndarray], float]

    def __call__(self, task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
        return float(self.function(y, outputs))


def _function_elsewhere(name: str) -> Metric:
    """Return a placeholder for a metric that was a Python function: its run can be shown, but not evaluated."""

    def value(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
        raise FedTailorError(
            f"The metric '{name}' is a Python function, which a run folder does not contain: pass it to resume, as in "
            f"ft.load(…).resume(metrics=[{name}])."
        )

    return Metric(name, value, bounds=(-math.inf, math.inf))


def confusion(task: Task, y: Tensor, outputs: Tensor) -> list[list[int]]:
    """Count how many samples of each class (rows) are predicted as each class (columns)."""
    pairs = y * task.classes + task.predicted(outputs)
    return torch.bincount(pairs, minlength=task.classes**2).view(task.classes, -1).tolist()


def predicted(task: Task, outputs: np.ndarray) -> np.ndarray:
    return task.predicted(torch.from_numpy(outputs)).numpy()


def probabilities(task: Task, outputs: np.ndarray) -> np.ndarray:
    """Return probabilities: of each class (n, classes) in a multi-class task, else of class 1 or of each label."""
    logits = torch.from_numpy(outputs)
    return (logits.softmax(1) if task.kind == "multiclass" else logits.sigmoid()).numpy()


def _scikit(name: str, **options: Any) -> Value:
    """Return a metric of scikit-learn on labels and predictions; imported on first use, since that takes a second."""

    def value(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
        import sklearn.metrics

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about classes that are predicted but absent
            return float(getattr(sklearn.metrics, name)(y, predicted(task, outputs), **options))

    return value


def _ranking(name: str) -> Value:
    """Return a one-against-rest metric, mean over the classes or labels that some samples have and some have not; NaN if none."""

    def value(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
        import sklearn.metrics

        p = probabilities(task, outputs)
        if task.kind == "multiclass":
            y = y[:, None] == np.arange(task.classes)
        found = getattr(sklearn.metrics, name)
        pairs = zip(y.reshape(len(p), -1).T, p.T, strict=True)
        return _mean([found(there, chance) for there, chance in pairs if there.any() and not there.all()])

    return value


def _log_loss(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
    return float(task.loss(torch.from_numpy(outputs), torch.from_numpy(y)))


def _calibration(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
    """Return the expected calibration error: |accuracy − confidence| per bin of confidence, weighted by its number of samples."""
    p = probabilities(task, outputs)
    confidence = p.max(1) if task.kind == "multiclass" else np.maximum(p, 1 - p)[:, 0]
    right = predicted(task, outputs) == y
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(y))


def _r2(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
    """Return the mean over targets; NaN if a target does not vary."""
    if not (y != y[0]).any(0).all():
        return math.nan
    return _scikit("r2_score")(task, y, outputs)


def _mae(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.abs(outputs - y).mean())


def _rmse(task: Task, y: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.sqrt(np.square(outputs - y).mean()))


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _fitting(task: Task) -> list[str]:
    return [m.name for m in METRICS.values() if task.kind in m.tasks]


NUMBERS: tuple[Kind, ...] = ("regression",)
METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("accuracy", _scikit("accuracy_score"), LABELS, power=1),
        Metric("balanced_accuracy", _scikit("balanced_accuracy_score"), CLASSES),
        Metric("f1", _scikit("f1_score", average="macro", zero_division=0), LABELS),
        Metric("auroc", _ranking("roc_auc_score"), LABELS),
        Metric("auprc", _ranking("average_precision_score"), LABELS),
        Metric("log_loss", _log_loss, LABELS, lower_is_better=True, power=1, bounds=(0.0, math.inf)),
        Metric("calibration_error", _calibration, CLASSES, lower_is_better=True),
        Metric("mae", _mae, NUMBERS, lower_is_better=True, power=1, bounds=(0.0, math.inf)),
        Metric("rmse", _rmse, NUMBERS, lower_is_better=True, power=2, bounds=(0.0, math.inf)),
        Metric("r2", _r2, NUMBERS, bounds=(-math.inf, 1.0)),
    )
}
