"""Charts drawn with matplotlib, without touching its global state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.files import replacing
from fedtailor.printable import drawable
from fedtailor.report.charts import COLOURS, SHADES, Bars, Chart, Curve, Heat, Points, Strip, looks

MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*", "<", ">", "h")
HATCHES = ("", "//", "..", "xx", "--", "oo")
FEW = 8  # names whose legend fits into a panel
WIDEST = 26  # characters per line of a name
LABEL: dict[str, Any] = {"boxstyle": "round", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
BLUES = LinearSegmentedColormap.from_list("blues", SHADES)


def panels(charts: Sequence[Chart], size: tuple[float, float] = (5.2, 4.2), title: str = "") -> Figure:
    """Draw charts side by side, at most three per row, with one legend for all."""
    columns = min(3, len(charts))
    rows = math.ceil(len(charts) / columns)
    names = max(max(len(chart.names), len({getattr(mark, "name", "") for mark in chart.marks})) for chart in charts)
    height = max(size[1], 2.4 + 0.24 * names)
    figure = Figure(figsize=(size[0] * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place, chart in enumerate(charts):
        draw(axes[place], chart)
    for spare in axes[len(charts) :]:
        spare.set_visible(False)
    entries = [dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True)) for panel in axes]
    handles = {name: handle for panel in entries for name, handle in panel.items()}
    if len(handles) > FEW:
        figure.legend(handles.values(), handles, loc="outside right upper", frameon=False, fontsize=8)
    elif len(handles) > 1:
        home = max(range(len(axes)), key=lambda k: len(entries[k]))  # the first panel that shows them all
        axes[home].legend(handles.values(), handles, framealpha=0.6, edgecolor="none", fontsize=8)
    if title:
        figure.suptitle(fill(drawable(title), int(10 * figure.get_figwidth())), fontsize=11)
    return figure


def draw(axes: Axes, chart: Chart) -> None:
    """Draw one chart; bars of several marks stand side by side."""
    styles = zip(looks(), cycle(MARKERS), strict=False)
    for place, mark in enumerate(chart.marks):
        colour = COLOURS[place % len(COLOURS)]
        match mark:
            case Curve(thin=True):
                _draw_curve(axes, mark, colour="#56B4E9", marker=".", ms=2.5, lw=0.7, alpha=0.7)
            case Curve():
                (colour, dash), marker = next(styles)
                _draw_curve(axes, mark, colour=colour, linestyle=dash, marker=marker)
            case Strip():
                _draw_strip(axes, mark, place, colour)
            case Points():
                _draw_points(axes, mark, colour, across=bool(chart.names))
            case Bars():
                _draw_bars(axes, mark, place, len(chart.marks))
            case Heat():
                draw_heat(axes, mark)
    axes.set(xlabel=chart.x, ylabel=chart.y)
    axes.set_title(drawable(chart.title), fontsize=10)
    across = any(isinstance(mark, Strip | Points) for mark in chart.marks)
    if not any(isinstance(mark, Heat) for mark in chart.marks):
        axes.grid(axis="x" if across else "y", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if across:
        axes.invert_yaxis()
    if all(isinstance(mark, Curve) and mark.steps for mark in chart.marks):
        axes.yaxis.set_major_locator(whole_numbers())
    if chart.names:
        size = min(9.0, 60 / max(map(len, chart.names)) + 5)
        labels = [fill(drawable(name), WIDEST) for name in chart.names]
        (axes.set_yticks if across else axes.set_xticks)(range(len(labels)), labels, fontsize=size)
    elif chart.log:
        axes.set_xscale("log")
    elif not across:
        axes.xaxis.set_major_locator(whole_numbers())


def _draw_curve(axes: Axes, curve: Curve, *, colour: str, **look: Any) -> None:
    """Draw a line with its band; keywords are matplotlib's."""
    every = max(1, len(curve.x) // 8)
    style: Any = "steps-post" if curve.steps else "default"
    options = {"lw": 1.8, "ms": 4, "markevery": every} | look
    label = fill(drawable(curve.name), WIDEST)
    axes.plot(curve.x, curve.y, color=colour, label=label, drawstyle=style, **options)
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, lw=0)


def draw_heat(axes: Axes, heat: Heat, bar: Axes | None = None) -> None:
    """Draw shades from pale to dark, and their scale on `bar` or beside the axes; a cell without a value stays blank."""
    norm = PowerNorm(0.5 if heat.by_root else 1, 0, float(np.nan_to_num(heat.values).max(initial=1)))
    shown = np.ma.masked_invalid(heat.values)
    image = axes.imshow(shown, cmap=BLUES, norm=norm, interpolation="nearest", aspect="auto", rasterized=True)
    scale = axes.figure.colorbar(image, cax=bar, ax=None if bar else axes, label=heat.unit)
    scale.outline.set_visible(False)


def save(figure: Figure, path: Path) -> None:
    with replacing(path) as draft:
        figure.savefig(draft, dpi=130)


def _draw_strip(axes: Axes, strip: Strip, place: int, colour: str) -> None:
    """Draw one dot per client with box and median; offsets go by rank, so the picture is reproducible."""
    values = np.sort(strip.values)
    axes.scatter(values, place + 0.28 * np.sin(2.4 * np.arange(len(values))), s=14, color=colour, alpha=0.6, lw=0)
    grey: dict[str, Any] = {"boxprops": {"color": "#888888"}, "medianprops": {"color": "black"}}
    axes.boxplot([values], positions=[place], widths=0.7, orientation="horizontal", showfliers=False, **grey)


def _draw_points(axes: Axes, points: Points, colour: str, *, across: bool) -> None:
    middle = points.x if across else points.y
    reach = None if points.low is None or points.high is None else (middle - points.low, points.high - middle)
    ends: dict[str, Any] = {"xerr" if across else "yerr": reach, "ecolor": "#888888", "elinewidth": 1.2}
    axes.errorbar(points.x, points.y, fmt="o", ms=5, color=colour, **ends)


def _draw_bars(axes: Axes, bars: Bars, place: int, many: int) -> None:
    """Draw bars, labelled with their numbers unless several stand side by side."""
    width = 0.8 / many
    at = np.arange(len(bars.heights)) - 0.4 + width * (place + 0.5)
    look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "hatch": HATCHES[place % len(HATCHES)]}
    label = bars.name if many > 1 else None
    axes.bar(at, np.nan_to_num(bars.heights), width, yerr=bars.std, label=label, edgecolor="white", **look)
    for x, height in zip(at, bars.heights, strict=True):
        if bars.std is not None and np.isfinite(height):
            axes.text(x, height / 2, f"{height:.2f}", ha="center", va="center", fontsize=9, bbox=LABEL)


def whole_numbers(most: int | None = None) -> MaxNLocator:
    return MaxNLocator(most or "auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
