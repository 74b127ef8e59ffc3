"""Summary metrics of a federation from its clients' scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.data.federation import Federation
from fedtailor.data.task import Task
from fedtailor.experiment.headline import columns
from fedtailor.learning.metrics import METRICS, Metric
from fedtailor.learning.scoring import Score

Labels = Mapping[int, Tensor]  # client -> the labels of the samples that its score is of


def summarize(
    scores: Mapping[int, Score],
    metrics: Sequence[Metric] = (METRICS["accuracy"],),
    task: Task | None = None,
    labels: Labels | None = None,
) -> dict[str, float]:
    """Return each metric's pooled value (every sample counts alike), its mean over clients (every client does), spread and worst decile.

    Clients without samples do not count, nor those at which a metric is undefined, which are counted as `…_undefined`. The worst decile
    is the mean over the tenth of clients (one at least) that fare worst. A pooled value that does not follow from those of the clients is
    computed from their outputs, and NaN where these are not at hand.
    """
    tested = {i: s for i, s in scores.items() if s.total}
    total = sum(s.total for s in tested.values())
    found = {"loss": sum(s.loss for s in tested.values()) / total if total else math.nan}
    for metric in metrics:
        found |= _summary(metric, tested, task, labels or {})
    return found


def summarize_federation(
    scores: Mapping[int, Score], metrics: Sequence[Metric], federation: Federation, *, validated: bool
) -> dict[str, Any]:
    """Summarize scores on the clients' test samples and, if asked for, on their validation samples."""
    clients, task = federation.clients, federation.task
    found: dict[str, Any] = summarize(scores, metrics, task, {i: clients[i].test.y for i in scores})
    if validated:
        held = {i: s.validation for i, s in scores.items() if s.validation is not None}
        labels = {i: v.y for i in held if (v := clients[i].validation) is not None}
        found |= {f"validation_{k}": v for k, v in summarize(held, metrics, task, labels).items()}
    return found


def patience_is_over(patience: int, records: Sequence[Mapping[str, Any]], metric: Metric) -> bool:
    """Return whether the last `patience` rounds brought no improvement on the validation samples; never if patience is 0."""
    rounds = [r for r in records if r["phase"] == "round"]
    if not patience or not rounds or rounds[-1]["loss"] is None:
        return False
    best = best_record(rounds, metric, validated=True)
    return rounds[-1]["round"] - best.get("round", 0) >= patience


def best_record(records: Sequence[Mapping[str, Any]], metric: Metric, *, validated: bool) -> Mapping[str, Any]:
    """Return the first record with the best pooled value of a metric, on validation or test samples; empty if none has a value.

    Where the pooled value cannot be known (of a metric like AUROC in a real federation), the mean over clients decides.
    """
    name = f"validation_{metric.name}" if validated else metric.name
    best: Mapping[str, Any] = {}
    highest = math.nan
    for record in records:
        value = next((v for v in (record.get(name), record.get(f"{name}_mean")) if v is not None and v == v), None)
        if value is not None and (math.isnan(highest) or metric.better(value, highest)):
            best, highest = record, value
    return best


def with_best(
    now: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], metric: Metric, round: int, *, validated: bool
) -> dict[str, Any]:
    """Return an evaluation with the metric that selects and, by that metric, the best of it and the earlier ones."""
    best = best_record([*earlier, now], metric, validated=validated)
    return {
        **now,
        **({} if metric.name == "accuracy" else {"select_by": metric.name}),
        **({"lower_is_better": True} if metric.lower_is_better and metric.name not in METRICS else {}),
        f"best_{metric.name}": best.get(metric.name),
        f"best_{metric.name}_mean": best.get(f"{metric.name}_mean"),
        "best_round": best.get("round", round),
    }


def _summary(metric: Metric, tested: Mapping[int, Score], task: Task | None, labels: Labels) -> dict[str, float]:
    known = {i: s for i, s in tested.items() if not math.isnan(s.value(metric.name))}
    values = np.sort([s.value(metric.name) for s in known.values()])
    worst = (values[::-1] if metric.lower_is_better else values)[: math.ceil(len(values) / 10)]
    names = columns(metric.name)
    summary = {
        metric.name: _pooled(metric, tested, known, task, labels),
        names["mean"][0]: float(values.mean()) if len(values) else math.nan,
        names["spread"][0]: float(values.std()) if len(values) else math.nan,
        names["worst"][0]: float(worst.mean()) if len(values) else math.nan,
    }
    undefined = len(tested) - len(known)
    return summary | ({f"{metric.name}_undefined": undefined} if undefined else {})


def _pooled(
    metric: Metric, tested: Mapping[int, Score], known: Mapping[int, Score], task: Task | None, labels: Labels
) -> float:
    if metric.name == "accuracy":  # of whole numbers, so that nothing is rounded
        total = sum(s.total for s in tested.values())
        return sum(s.correct for s in tested.values()) / total if total else math.nan
    if metric.power:
        return metric.pooled([s.value(metric.name) for s in known.values()], [s.total for s in known.values()])
    outputs = [s.outputs for s in tested.values() if s.outputs is not None]
    if task is None or not outputs or len(outputs) < len(tested):
        return math.nan
    return metric.of(task, torch.cat([labels[i] for i in tested]), torch.cat(outputs))
