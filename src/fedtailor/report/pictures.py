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
from fedtailor.report.charts import COLOURS, MOST_NAMES, SHADES, Chart, Heat, Series, label_chart, looks, shortened

MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*", "<", ">", "h")
HATCHES = ("", "//", "..", "xx", "--", "oo")
FEW = 8  # names whose legend fits into a panel
WIDEST = 26  # characters per line of a name
NUMBERED = 12  # up to this many rows and columns, the cells of a heat map show their numbers
LABEL: dict[str, Any] = {"boxstyle": "round", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
BLUES = LinearSegmentedColormap.from_list("blues", SHADES)


def panels(charts: Sequence[Chart], size: tuple[float, float] = (5.2, 4.2), title: str = "") -> Figure:
    """Draw charts side by side, at most three per row, with one legend for all."""
    columns = min(3, len(charts))
    rows = math.ceil(len(charts) / columns)
    names = max(max(len(_shown(chart.names, chart)), len({one.name for one in chart.series})) for chart in charts)
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


def label_figure(counts: np.ndarray, labels: Sequence[str], clients: Sequence[str]) -> Figure:
    """Draw who holds which labels; `counts` is clients × classes, and classes without names are numbered."""
    labels = labels or [str(number) for number in range(counts.shape[1])]
    size = (float(np.clip(0.3 * len(counts), 4.5, 9.0)), 3.6)
    return panels([label_chart(counts, labels, clients)], size, "Training samples by client and class")


def draw(axes: Axes, chart: Chart) -> None:
    """Draw one chart; bars of several series stand side by side."""
    styles = zip(looks(), cycle(MARKERS), strict=False)
    for place, one in enumerate(chart.series):
        colour = COLOURS[place % len(COLOURS)]
        match one.kind:
            case "guide":
                _draw_line(axes, one, colour="#56B4E9", marker=".", ms=2.5, lw=0.7, alpha=0.7)
            case "line":
                (colour, dash), marker = next(styles)
                _draw_line(axes, one, colour=colour, linestyle=dash, marker=marker)
            case "box":
                _draw_box(axes, one, colour)
            case "dots" | "hollow":
                _draw_dots(axes, one, colour, across=chart.in_rows)
            case "bars":
                _draw_bars(axes, one, place, sum(other.kind == "bars" for other in chart.series))
    if chart.heat:
        _draw_heat(axes, chart.heat)
    else:
        axes.grid(axis="x" if chart.in_rows else "y", color="#dddddd", lw=0.6)
    axes.set(xlabel=chart.x, ylabel=chart.y)
    axes.set_title(drawable(chart.title), fontsize=10)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.in_rows and not chart.heat:
        axes.invert_yaxis()
    if names := _shown(chart.names, chart):
        size = min(9.0, 60 / max(1, *map(len, names)) + 5)
        labels = [fill(drawable(name), WIDEST) for name in names]
        (axes.set_yticks if chart.in_rows else axes.set_xticks)(range(len(labels)), labels, fontsize=size)
    if chart.heat and 0 < len(names := chart.heat.columns) <= MOST_NAMES:
        axes.set_xticks(range(len(names)), [drawable(name) for name in names], fontsize=8, rotation=90)
    elif chart.log:
        axes.set_xscale("log")
    elif chart.heat or not chart.names:
        axes.xaxis.set_major_locator(_whole_numbers())
    if chart.series and all(one.steps for one in chart.series):
        axes.yaxis.set_major_locator(_whole_numbers())


def _shown(names: Sequence[str], chart: Chart) -> Sequence[str]:
    """The names to stand beside an axis; those of a heat map are shortened, and left out if they are many."""
    if chart.heat is None:
        return names
    return [shortened(name) for name in names] if len(names) <= MOST_NAMES else ()


def _draw_line(axes: Axes, line: Series, *, colour: str, **look: Any) -> None:
    """Draw a line with its band; keywords are matplotlib's."""
    style: Any = "steps-post" if line.steps else "default"
    options = {"lw": 1.8, "ms": 4, "markevery": max(1, len(line.x) // 8)} | look
    axes.plot(line.x, line.y, color=colour, label=fill(drawable(line.name), WIDEST), drawstyle=style, **options)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, lw=0)


def _draw_box(axes: Axes, box: Series, colour: str) -> None:
    """Draw one dot per value with box and median; offsets go by rank, so the picture is reproducible."""
    values = np.sort(box.x)
    axes.scatter(values, box.y + 0.28 * np.sin(2.4 * np.arange(len(values))), s=14, color=colour, alpha=0.6, lw=0)
    grey: dict[str, Any] = {"boxprops": {"color": "#888888"}, "medianprops": {"color": "black"}}
    axes.boxplot([values], positions=box.y, widths=0.7, orientation="horizontal", showfliers=False, **grey)


def _draw_dots(axes: Axes, dots: Series, colour: str, *, across: bool) -> None:
    middle = dots.x if across else dots.y
    reach = None if dots.low is None or dots.high is None else (middle - dots.low, dots.high - middle)
    look: dict[str, Any] = {"ms": 7, "mfc": "white", "mec": "black"} if dots.kind == "hollow" else {"ms": 5}
    look |= {"xerr" if across else "yerr": reach, "ecolor": "#888888", "elinewidth": 1.2}
    axes.errorbar(dots.x, dots.y, fmt="o", color=colour, label=drawable(dots.name), **look)


def _draw_bars(axes: Axes, bars: Series, place: int, many: int) -> None:
    """Draw bars, labelled with their numbers if they have intervals."""
    width = 0.8 / many
    at = bars.x - 0.4 + width * (place + 0.5)
    look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "hatch": HATCHES[place % len(HATCHES)]}
    reach = None if bars.high is None else bars.high - bars.y
    axes.bar(at, np.nan_to_num(bars.y), width, yerr=reach, label=drawable(bars.name), edgecolor="white", **look)
    for x, height in zip(at, bars.y, strict=True):
        if reach is not None and np.isfinite(height):
            axes.text(x, height / 2, f"{height:.2f}", ha="center", va="center", fontsize=9, bbox=LABEL)


def _draw_heat(axes: Axes, heat: Heat) -> None:
    """Draw shades from pale to dark, and their scale, with numbers in the cells of a small map; one without a value stays blank."""
    norm = PowerNorm(0.5 if heat.by_root else 1, 0, float(np.nan_to_num(heat.values).max(initial=1)))
    shown = np.ma.masked_invalid(heat.values)
    image = axes.imshow(shown, cmap=BLUES, norm=norm, interpolation="nearest", aspect="auto", rasterized=True)
    scale = axes.figure.colorbar(image, ax=axes, label=heat.unit)
    scale.outline.set_visible(False)
    whole = (shown == shown.round()).all()
    for (row, column), value in np.ndenumerate(heat.values if max(heat.values.shape) <= NUMBERED else np.empty((0, 0))):
        if np.isfinite(value):
            text = f"{value:.0f}" if whole else f"{value:.2f}".removeprefix("0")
            ink = "white" if norm(value) > 0.55 else "#1f2933"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=ink)


def save(figure: Figure, path: Path, dpi: int = 130) -> None:
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi)


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
