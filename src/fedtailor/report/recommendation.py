"""Advice as sentences and as a picture."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedtailor.experiment.config import part_values
from fedtailor.experiment.headline import Headline
from fedtailor.report.charts import by_client, forest, save_picture
from fedtailor.report.tables import readable_bytes

if TYPE_CHECKING:
    from fedtailor.api.recommend import Advice, Gain

FEW = 12  # clients named


def sentences(advice: Advice) -> list[str]:
    """Return the advice, then its reasons."""
    metric, gain = advice.metric, advice.over_alone
    what = f"mean {metric.title} of clients"
    heads = {
        "federate": f"Federate with {advice.method}: {what} {_points(gain, metric)} over training alone.",
        "alone": f"Do not federate: training alone is as good. The best method, {advice.method}, changes the {what} by "
        f"{_points(gain, metric)}.",
        "unclear": f"Unclear: {advice.method} changes the {what} by {_points(gain, metric)} over training alone, which may be chance. "
        "More clients or samples would tell.",
    }
    scores = sorted(advice.scores.items(), key=lambda item: item[1] if metric.lower_is_better else -item[1])
    tried = ", ".join(f"{name} {metric.shown(score)}" for name, score in scores)
    lost = len(advice.losing)
    who = ", ".join(advice.losing[:FEW]) + (" …" if lost > FEW else "")
    return [
        heads[advice.verdict],
        *advice.skew.sentences(),
        f"Tried, each with its best settings, pooled {metric.title} on validation samples: {tried}.",
        f"Over FedAvg it gains {_points(advice.over_average, metric)}."
        if advice.method != "fedavg"
        else "It is FedAvg.",
        f"{lost} of {len(advice.names)} clients did worse with it than alone{f': {who}' if lost else ''}. Small differences are chance.",
        f"It costs {readable_bytes(advice.bytes_per_round)} per round, both ways and all clients together, and {advice.seconds:.0f} "
        "seconds of computation here for all rounds.",
        f"Measured on samples held out of the training samples; test samples had no say. {advice.trials} trials and "
        f"{advice.minutes:.1f} minutes. In brackets: 95 % interval over clients.",
    ]


def next_command(advice: Advice, overrides: Sequence[str]) -> str:
    """Return the command that runs what was recommended; `overrides` are those that the advice was asked for with."""
    method = part_values(advice.config.method)["name"]
    values = [f"{key}={value}" for key, value in advice.values.items()]
    return shlex.join(["fedtailor", "run", f"method={method}", *overrides, *values])


def recommendation_picture(advice: Advice, path: Path) -> None:
    """Draw the score of each candidate, and the gain of each client over training alone."""
    metric, gains = advice.metric, advice.over_alone.clients
    sign = 1 if metric.lower_is_better else -1
    names = sorted(advice.scores, key=lambda name: sign * advice.scores[name])
    scores = np.array([metric.scale * advice.scores[name] for name in names])
    tried = forest(metric.axis(f"{metric.title} on validation samples"), names, scores)
    order = np.argsort(-np.where(np.isfinite(gains), gains, -np.inf))
    title = metric.axis(f"gain of {advice.method} over training alone")
    who = [advice.names[i] for i in order]
    gained = by_client(title, advice.method, who, metric.scale * gains[order], zero=True)
    save_picture([tried, gained], path)


def _points(gain: Gain, metric: Headline) -> str:
    """A gain with its interval, such as +2.1 [0.4, 3.8] points."""
    form = ".1f" if metric.unit else ".3g"
    mean, low, high = (metric.scale * value for value in (gain.mean, gain.low, gain.high))
    return f"{mean:+{form}} [{low:{form}}, {high:{form}}]" + (" points" if metric.unit else "")
