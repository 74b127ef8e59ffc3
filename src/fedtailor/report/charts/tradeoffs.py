"""What accuracy costs and whom it leaves behind: fairness, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedtailor.report.charts.style import (
    WIDEST_NAME,
    Chart,
    Groups,
    axis,
    looks,
    names_axis,
    numbers,
    short,
    tall,
    text,
)
from fedtailor.report.tables import BYTES, MEAN, PACE, SPREAD, WORST, Measure, readable_bytes

LETTER, LINE = 0.018, 0.035  # how wide a letter is and how far from its point a name stands


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
        "error_x": {
            "array": numbers(np.array([v.std() for v in values])),
            "color": "#888888",
            "thickness": 1.2,
            "width": 3,
        },
        "marker": {"size": 9, "color": _colours(groups)},
        "text": [text(name) for name in groups],
        "hovertemplate": "%{text}: %{x:.2f}<extra></extra>",
    }
    axes = {"xaxis": axis(title), "yaxis": names_axis(list(groups))}
    return {"data": [trace], "layout": axes | {"height": tall(len(groups), 24), "showlegend": False}}


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
        "text": _labels(list(groups), x, y, leading),
        "textposition": ["bottom right" if left else "top left" for left in x < x.max() / 2],
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


def _labels(names: Sequence[str], x: np.ndarray, y: np.ndarray, leading: Sequence[int]) -> list[str]:
    """The leaders' names, best first, but for those that would touch another; lengths are shares of the chart's sides."""
    labels, taken = [""] * len(names), list[tuple[float, float, float]]()
    for k in reversed(leading):
        wide = LETTER * min(len(names[k]), WIDEST_NAME)
        across, up = float(x[k] / (x.max() or 1.0)), float((y[k] - y.min()) / (np.ptp(y) or 1.0))
        start, height = (across, up - LINE) if across < 0.5 else (across - wide, up + LINE)
        if all(start > e or start + wide < s or abs(height - h) > 2 * LINE for s, e, h in taken):
            labels[k] = short(names[k])
            taken.append((start, start + wide, height))
    return labels


def _colours(groups: Groups) -> list[str]:
    return [colour for _, (colour, _) in zip(groups, looks(), strict=False)]
