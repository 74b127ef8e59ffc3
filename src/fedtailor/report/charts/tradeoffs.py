"""What accuracy costs and whom it leaves behind: fairness, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedtailor.report.charts.style import Chart, Groups, axis, looks, names_axis, numbers, short, text
from fedtailor.report.tables import BYTES, MEAN, PACE, SPREAD, WORST, Measure, readable_bytes


def fairness(groups: Groups) -> list[Chart]:
    """The clients that fare worst, and how far clients lie apart."""
    return [
        _dots(groups, WORST, "worst decile (%), higher is fairer"),
        _dots(groups, SPREAD, "spread (points), lower is fairer"),
    ]


def costs(groups: Groups) -> list[Chart]:
    """Accuracy against bytes and against seconds a round."""
    return [
        _pareto(groups, BYTES, {"tickformat": "~s", "ticksuffix": "B"}, readable_bytes),
        _pareto(groups, PACE, {}, lambda seconds: f"{seconds:.3g} s"),
    ]


def front(cost: np.ndarray, gain: np.ndarray) -> list[int]:
    """The positions, by rising cost, of those that nobody beats at their cost or a lower one."""
    kept: list[int] = []
    for k in sorted(range(len(cost)), key=lambda k: (cost[k], -gain[k])):
        if not kept or gain[k] > gain[kept[-1]]:
            kept.append(k)
    return kept


def _dots(groups: Groups, measure: Measure, title: str) -> Chart:
    values = [100 * measure.numbers(runs) for runs in groups.values()]
    trace = {
        "mode": "markers",
        "x": numbers(np.array([v.mean() for v in values])),
        "y": list(range(len(values))),
        "error_x": {"array": numbers(np.array([v.std() for v in values])), "thickness": 1.2, "width": 3},
        "marker": {"size": 9, "color": _colours(groups)},
        "text": [text(name) for name in groups],
        "hovertemplate": "%{text}: %{x:.2f}<extra></extra>",
    }
    axes = {"xaxis": axis(title), "yaxis": names_axis(list(groups))}
    return {"data": [trace], "layout": axes | {"height": 110 + 24 * len(groups), "showlegend": False}}


def _pareto(groups: Groups, cost: Measure, ticks: dict[str, str], readable: Callable[[float], str]) -> Chart:
    x = np.array([cost.numbers(runs).mean() for runs in groups.values()])
    y = np.array([100 * MEAN.numbers(runs).mean() for runs in groups.values()])
    leading = front(x, y)
    path = {
        "mode": "lines",
        "x": x[leading].tolist(),
        "y": numbers(y[leading]),
        "line": {"color": "#888888", "width": 1.2, "dash": "dot", "shape": "hv"},
        "hoverinfo": "skip",
    }
    points = {
        "mode": "markers+text",
        "x": x.tolist(),
        "y": numbers(y),
        "text": _labels(list(groups), y, leading),
        "textposition": ["bottom right" if v < x.max() / 2 else "top left" for v in x],
        "textfont": {"size": 11},
        "customdata": [[text(name), readable(float(v))] for name, v in zip(groups, x, strict=True)],
        "marker": {
            "size": 10,
            "color": _colours(groups),
            "symbol": ["circle" if k in leading else "circle-open" for k in range(len(x))],
        },
        "hovertemplate": "%{customdata[0]}<br>%{y:.2f} %, %{customdata[1]}<extra></extra>",
    }
    across = axis(cost.title) | ticks | {"range": _padded(0.0, float(x.max())), "zeroline": False}
    up = axis("mean accuracy (%)") | {"range": _padded(float(y.min()), float(y.max()))}
    return {"data": [path, points], "layout": {"xaxis": across, "yaxis": up, "height": 400, "showlegend": False}}


def _padded(low: float, high: float) -> list[float]:
    """Room for the names of points at the edge."""
    edge = 0.08 * (high - low) or 1.0
    return [low - edge, high + edge]


def _labels(names: Sequence[str], heights: np.ndarray, leading: Sequence[int]) -> list[str]:
    """The leaders' names, best first, but for one so close below the last named that their names would touch."""
    labels, apart, last = [""] * len(names), 0.06 * float(np.ptp(heights)), np.inf
    for k in reversed(leading):
        if last - heights[k] >= apart:
            labels[k], last = short(names[k]), float(heights[k])
    return labels


def _colours(groups: Groups) -> list[str]:
    return [colour for _, (colour, _) in zip(groups, looks(), strict=False)]
