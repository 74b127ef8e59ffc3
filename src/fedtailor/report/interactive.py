"""Charts as data for plotly.js, small and with every name shown as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from fedtailor.report.charts import COLOURS, MOST_NAMES, SHADES, WIDEST, Chart, Heat, Series, looks, shortened
from fedtailor.report.sheets import escape_html, one_line

Trace = dict[str, Any]

DASHES = {"solid": "solid", "dashed": "dash", "dashdot": "dashdot", "dotted": "dot"}
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
GUIDE = {"color": "#888888", "width": 1.2, "dash": "dot"}
MOST_POINTS = 240  # of a curve: more than a screen can show
MOST_DOTS = 4000  # clients drawn one by one beside their boxes


def plotly_chart(chart: Chart) -> dict[str, Any]:
    """Convert a chart to what plotly.js takes."""
    each = sum(len(one.x) for one in chart.series if one.kind == "box") <= MOST_DOTS
    traces = [_heat(chart.heat)] if chart.heat else []
    for place, (one, (colour, dash)) in enumerate(zip(chart.series, looks(), strict=False)):
        match one.kind:
            case "line" | "guide":
                traces += _line(one, colour, DASHES[dash], chart.x)
            case "box":
                traces.append(_box(one, colour, each=each))
            case "dots" | "hollow":
                traces.append(_dots(one, place, by_name=chart.in_rows))
    return {"data": traces, "layout": _layout(chart)}


def thinned(series: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Choose positions of curves (curves × positions) to keep: the ends, and each curve's extremes in every stretch."""
    curves, length = series.shape
    if length <= most:
        return np.arange(length)
    stretches = np.array_split(np.arange(length), max(1, (most - 2) // (2 * curves)))
    kept = {0, length - 1}
    for stretch in stretches:
        part = series[:, stretch]
        kept.update(stretch[np.concatenate([part.argmin(axis=1), part.argmax(axis=1)])].tolist())
    return np.array(sorted(kept))


def _line(line: Series, colour: str, dash: str, unit: str) -> list[Trace]:
    line = line[thinned(np.stack([y for y in (line.low, line.y, line.high) if y is not None]))]
    shape = {"shape": "hv" if line.steps else "linear"}
    points = {"x": line.x.tolist(), "y": _short(line.y)}
    quiet = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    if line.kind == "guide":
        return [points | quiet | {"line": GUIDE | shape}]
    label = "<br>".join(escape_html(part) for part in wrap(one_line(line.name), WIDEST + 8))
    name = {"legendgroup": escape_html(line.name), "name": label, "uid": line.name}
    look = {"mode": "lines+markers" if len(line.x) < 3 else "lines", "line": {"color": colour, "dash": dash} | shape}
    traces = [name | points | look | {"hovertemplate": f"{unit} %{{x}}: %{{y:.4~f}}<extra>%{{fullData.name}}</extra>"}]
    if line.low is not None and line.high is not None:
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        around = {"x": [*points["x"], *points["x"][::-1]], "y": _short([*line.high, *line.low[::-1]])}
        fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.16)", "line": {"width": 0}}
        traces.insert(0, name | around | fill | quiet | {"uid": f"band of {line.name}"})
    return traces


def _box(box: Series, colour: str, *, each: bool) -> Trace:
    """A box with every client as a dot, unless there are very many."""
    dots = {"boxpoints": "all", "pointpos": 0, "jitter": 0.6, "text": [escape_html(who) for who in box.labels]}
    look = {"type": "box", "orientation": "h", "line": {"width": 1.5}, "showlegend": False}
    name = {"name": escape_html(box.name), "uid": box.name, "hoverinfo": "x+text+name"}
    marker = {"marker": {"color": colour, "size": 4, "opacity": 0.6}}
    points = {"x": _short(box.x), "y0": int(box.y[0])}
    return look | name | marker | points | (dots if each else {"boxpoints": False})


def _heat(heat: Heat) -> Trace:
    shades = [f"rgb({','.join(str(round(255 * part)) for part in shade)})" for shade in SHADES]
    power = 2 if heat.by_root else 1
    scale = [[(k / (len(shades) - 1)) ** power, shade] for k, shade in enumerate(shades)]
    hover = f"%{{y}}<br>%{{x}}<br>%{{z}} {heat.unit}<extra></extra>"
    bar = {"title": {"text": heat.unit}, "thickness": 12, "outlinewidth": 0}
    ends = {"zmin": 0, "zmax": float(np.nan_to_num(heat.values).max(initial=1))} if heat.by_root else {}
    look = {"type": "heatmap", "colorscale": scale, "colorbar": bar, "hovertemplate": hover, "hoverongaps": False}
    return look | ends | {"z": [_short(row) for row in heat.values]}


def _dots(dots: Series, place: int, *, by_name: bool) -> Trace:
    symbol = SYMBOLS[place % len(SYMBOLS)] + ("-open" if dots.kind == "hollow" else "")
    hover = "%{hovertext}: %{x:.4~f}" if by_name else "%{hovertext}<br>%{x:.4~s}, %{y:.4~f}"
    trace: Trace = {
        "mode": "markers",
        "name": escape_html(dots.name),
        "hovertext": [escape_html(name) for name in dots.labels],
        "hovertemplate": hover + "<extra></extra>",
        "x": _short(dots.x),
        "y": _short(dots.y),
        "marker": {"size": 9, "color": COLOURS[place % len(COLOURS)], "symbol": symbol},
    }
    if dots.low is not None and dots.high is not None:
        middle = dots.x if by_name else dots.y
        reach = {"array": _short(dots.high - middle), "arrayminus": _short(middle - dots.low), "symmetric": False}
        trace["error_x" if by_name else "error_y"] = reach | {"color": "#888888", "thickness": 1.2, "width": 3}
    return trace


def _layout(chart: Chart) -> dict[str, Any]:
    x, y = ({"title": {"text": title}, "automargin": True, "zeroline": False} for title in (chart.x, chart.y))
    rows, height = len(chart.names), 440
    if rows:
        y |= _places(chart.names) | {"range": [rows - 0.5, -0.5], "showgrid": False}
        height = 120 + rows * (30 if rows <= MOST_NAMES else 16)
    if chart.heat:
        x |= _places(chart.heat.columns)
    if chart.log:
        x["type"] = "log"
    if chart.x == "round" and max(one.x.max(initial=0) for one in chart.series) <= 12:
        x |= {"tick0": 0, "dtick": 1}  # no tick between two
    legend = not rows and any(one.name for one in chart.series)
    return {"xaxis": x, "yaxis": y, "height": height, "showlegend": legend, "hovermode": "closest"}


def _places(names: Sequence[str]) -> dict[str, Any]:
    """Ticks with names, which the pointer shows too; the labels of many are left out."""
    text = [escape_html(shortened(name)) for name in names]
    return {"tickvals": list(range(len(text))), "ticktext": text, "showticklabels": len(text) <= MOST_NAMES}


def _short(values: Iterable[float]) -> list[float | None]:
    """Round numbers to keep the file small, more finely than a screen shows; null for missing ones."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]
