"""Accuracy, and what a method logs, over the rounds of a reproduced figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.papers.comparison import Comparison
from fedtailor.report.logged import logged_by_server
from fedtailor.report.pictures import FEW, draw_curves, looks, plain
from fedtailor.report.results import Result, read_result

END = 0.15  # share of the rounds that a look at the end shows
NAMES = {"tau": "rounds between two aggregations, τ", "alpha_mean": "mean share of the own head, ᾱ"}
WHOLE = {"tau"}


def curves_figure(comparison: Comparison) -> Figure | None:
    """A panel a column, a line a row."""
    groups = {name: runs for name in comparison.preset.columns if (runs := results(comparison, name))}
    if not groups:
        return None
    figure, panels = _canvas(len(groups), rows=max(map(len, groups.values())))
    for axes, (name, runs) in zip(panels, groups.items(), strict=True):
        draw_curves(axes, runs)
        axes.set_title(name, fontsize=10)
    _legend(figure, panels)
    return figure


def curves_and_end_figure(comparison: Comparison) -> Figure | None:
    """Left all rounds, right the last ones closer up."""
    runs = results(comparison, comparison.preset.columns[0])
    if not runs:
        return None
    figure, panels = _canvas(2, rows=len(runs))
    for axes in panels:
        draw_curves(axes, runs)
    _close_up(panels[1], max(run.curve[0][-1] for group in runs.values() for run in group))
    panels[0].set_title(comparison.preset.columns[0], fontsize=10)
    panels[1].set_title("the last rounds", fontsize=10)
    _legend(figure, panels)
    return figure


def schedule_figure(comparison: Comparison) -> Figure | None:
    """What the server logged, a panel a name and a line a row, of the first seed."""
    runs = results(comparison, comparison.preset.columns[0])
    logged = {row: logged_by_server(group[0]) for row, group in runs.items()}
    names = [name for name in NAMES if any(name in series for series in logged.values())]
    if not names:
        return None
    figure, panels = _canvas(len(names), rows=len(logged))
    for axes, name in zip(panels, names, strict=True):
        for (row, series), (colour, style, marker) in zip(logged.items(), looks(), strict=False):
            if name in series:
                rounds = sorted(series[name])
                values = [series[name][t] for t in rounds]
                every = max(1, len(rounds) // 8)
                look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4, "markevery": every, "lw": 1.6}
                steps: Any = "steps-post" if name in WHOLE else "default"
                axes.plot(rounds, values, style, drawstyle=steps, label=row, **look)
        plain(axes, "round", NAMES[name])
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=name in WHOLE))
    _legend(figure, panels)
    return figure


def results(comparison: Comparison, column: str) -> dict[str, list[Result]]:
    """The finished runs of each row."""
    found = {row: [read_result(path) for path in comparison.folders(row, column)] for row in comparison.preset.rows}
    return {row: runs for row, runs in found.items() if runs}


def _canvas(panels: int, rows: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.6 * panels, 4.2 + (0.2 * rows / 4 if rows > FEW else 0)), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    handles = {label: h for axes in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(handles) > FEW:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    else:
        panels[0].legend(handles.values(), handles, frameon=False, fontsize=8)


def _close_up(axes: Axes, rounds: int) -> None:
    start = rounds * (1 - END)
    points = np.concatenate([np.asarray(line.get_xydata(), dtype=float) for line in axes.lines])
    inside = points[points[:, 0] >= start, 1]
    margin = 0.08 * np.ptp(inside) or 0.5
    axes.set(xlim=(start, rounds), ylim=(inside.min() - margin, inside.max() + margin))
