"""Accuracy over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtailor.report.charts.style import Chart, Groups, axis, counting_axis, in_lines, looks, numbers, text
from fedtailor.report.results import Result
from fedtailor.report.thinning import thinned


def curves(groups: Groups) -> Chart:
    """The clients' mean accuracy: a line a method, a band of ± one standard deviation where it has several runs."""
    traces: list[dict[str, Any]] = []
    for (name, runs), (colour, dash) in zip(groups.items(), looks(), strict=False):
        steps, mean, std = over_runs(runs)
        kept = thinned(np.stack([mean - std, mean, mean + std] if std.any() else [mean]))
        steps, mean, std = steps[kept], mean[kept], std[kept]
        if std.any():
            traces.append(_band(name, colour, steps, mean, std))
        traces.append(
            {
                "name": in_lines(name),
                "legendgroup": text(name),
                "uid": name,
                "mode": "lines+markers" if len(steps) < 3 else "lines",
                "x": steps.tolist(),
                "y": numbers(mean),
                "line": {"color": colour, "dash": dash, "width": 2},
                "hovertemplate": "round %{x}: %{y:.2f} %<extra>%{fullData.name}</extra>",
            }
        )
    last = max(run.rounds for runs in groups.values() for run in runs)
    axes = {"xaxis": counting_axis("round", last), "yaxis": axis("mean accuracy of personal models (%)")}
    return {"data": traces, "layout": axes | {"height": 460, "showlegend": True, "hovermode": "closest"}}


def over_runs(runs: Sequence[Result]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, and mean and standard deviation in percent over the runs that came so far."""
    steps = np.unique(np.concatenate([run.curve[0] for run in runs]))
    values = np.full((len(runs), len(steps)), np.nan)
    for row, run in zip(values, runs, strict=True):
        own, accuracy = run.curve
        row[np.searchsorted(steps, own)] = 100 * np.array(accuracy, dtype=float)
    return steps, np.nanmean(values, axis=0), np.nanstd(values, axis=0)


def _band(name: str, colour: str, steps: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return {
        "legendgroup": text(name),
        "uid": f"band of {name}",
        "mode": "lines",
        "x": [*steps.tolist(), *steps[::-1].tolist()],
        "y": numbers(np.concatenate([mean + std, (mean - std)[::-1]])),
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.16)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
