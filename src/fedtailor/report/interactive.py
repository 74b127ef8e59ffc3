"""Charts as data for plotly.js, small and with every name shown as text."""

from __future__ import annotations

import html
from collections.abc import Iterable
from textwrap import wrap
from typing import Any

import numpy as np

from fedtailor.report.charts import COLOURS, SHADES, Chart, Curve, Heat, Points, Strip, looks
from fedtailor.report.sheets import one_line

Trace = dict[str, Any]

DASHES = {"solid": "solid", "dashed": "dash", "dashdot": "dashdot", "dotted": "dot"}
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
GUIDE = {"color": "#888888", "width": 1.2, "dash": "dot"}
WIDEST = 24  # characters of a name beside an axis; the whole name appears under the pointer
MOST_POINTS = 240  # of a curve: more than a screen can show
MOST_DOTS = 4000  # clients drawn one by one beside their boxes
MOST_TEXTS = 20_000  # cells of a heat map with a text of their own; more would make the file large
LETTER, LINE = 0.018, 0.035  # width of a letter and distance of a name from its point, as fractions of the chart


def plotly_chart(chart: Chart) -> dict[str, Any]:
    """Convert a chart to what plotly.js takes."""
    dots = sum(len(mark.values) for mark in chart.marks if isinstance(mark, Strip))
    traces: list[Trace] = []
    for place, (mark, (colour, dash)) in enumerate(zip(chart.marks, looks(), strict=False)):
        match mark:
            case Curve():
                traces += _curve(mark, colour, DASHES[dash])
            case Strip():
                traces.append(_box(mark, place, colour, each=dots <= MOST_DOTS))
            case Heat():
                traces.append(_heat(mark))
            case Points():
                traces += _points(mark, place, by_name=bool(chart.names))
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


def _curve(curve: Curve, colour: str, dash: str) -> list[Trace]:
    low, high = curve.low, curve.high
    kept = thinned(np.stack([curve.y] if low is None or high is None else [low, curve.y, high]))
    x = curve.x[kept].tolist()
    name = {"legendgroup": _text(curve.name), "name": "<br>".join(_lines(curve.name)), "uid": curve.name}
    line = {"color": colour, "dash": dash, "width": 2, "shape": "hv" if curve.steps else "linear"}
    if curve.thin:
        quiet = {"mode": "lines", "line": GUIDE, "hoverinfo": "skip", "showlegend": False}
        return [quiet | {"x": x, "y": _short(curve.y[kept])}]
    hover = {"hovertemplate": "round %{x}: %{y:.4~f}<extra>%{fullData.name}</extra>"}
    mode = {"mode": "lines+markers" if len(x) < 3 else "lines"}
    traces = [name | mode | {"x": x, "y": _short(curve.y[kept]), "line": line} | hover]
    if low is not None and high is not None:
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        around = {"x": [*x, *x[::-1]], "y": _short([*high[kept], *low[kept][::-1]])}
        fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.16)", "line": {"width": 0}}
        quiet = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, "uid": f"band of {curve.name}"}
        traces.insert(0, name | around | fill | quiet)
    return traces


def _box(strip: Strip, place: int, colour: str, *, each: bool) -> Trace:
    """A box with every client as a dot or, for very many clients, enough quantiles for the same box."""
    values = strip.values if each or len(strip.values) < 200 else np.quantile(strip.values, np.linspace(0, 1, 200))
    dots = {"boxpoints": "all", "pointpos": 0, "jitter": 0.6, "text": [_text(who) for who in strip.who]}
    box = {"type": "box", "orientation": "h", "y0": place, "line": {"width": 1.5}, "showlegend": False}
    name = {"name": _text(strip.name), "uid": strip.name, "hoverinfo": "x+text+name"}
    marker = {"marker": {"color": colour, "size": 4, "opacity": 0.6}}
    return box | name | marker | {"x": _short(values)} | (dots if each else {"boxpoints": False})


def _heat(heat: Heat) -> Trace:
    shades = [f"rgb({','.join(str(round(255 * part)) for part in shade)})" for shade in SHADES]
    power = 2 if heat.by_root else 1
    scale = [[(k / (len(shades) - 1)) ** power, shade] for k, shade in enumerate(shades)]
    few = heat.values.size <= MOST_TEXTS
    texts = [[f"{_text(row)}<br>{_text(name)}" for name in heat.names] for row in heat.rows] if few else None
    hover = ("%{text}" if few else "client %{x}") + f"<br>%{{z}} {heat.unit}<extra></extra>"
    bar = {"title": {"text": heat.unit}, "thickness": 12, "outlinewidth": 0}
    cells = {"z": [_short(row) for row in heat.values], "x": heat.columns.tolist(), "text": texts}
    ends = {"zmin": 0, "zmax": float(np.nan_to_num(heat.values).max(initial=1))} if heat.by_root else {}
    look = {"type": "heatmap", "colorscale": scale, "colorbar": bar, "hovertemplate": hover, "hoverongaps": False}
    return look | cells | ends


def _points(points: Points, place: int, *, by_name: bool) -> list[Trace]:
    """Dots of one colour and symbol; in a chart by name or with a front, each dot has its own colour."""
    own = by_name or points.front is not None
    colour = [c for _, (c, _) in zip(points.names, looks(), strict=False)] if own else COLOURS[place % len(COLOURS)]
    symbol: Any = "circle" if own else SYMBOLS[place % len(SYMBOLS)]
    hover = "%{hovertext}: %{x:.4~f}" if by_name else "%{hovertext}<br>%{x:.4~s}, %{y:.4~f}"
    names = {"name": _text(points.name), "hovertext": [_text(name) for name in points.names]}
    marks = {"mode": "markers", "x": _short(points.x), "y": _short(points.y)}
    trace: Trace = names | marks | {"hovertemplate": hover + "<extra>%{fullData.name}</extra>"}
    if points.std is not None:
        bars = {"array": _short(points.std), "color": "#888888", "thickness": 1.2, "width": 3}
        trace["error_x" if by_name else "error_y"] = bars
    if points.front is None:
        return [trace | {"marker": {"size": 9, "color": colour, "symbol": symbol}}]
    front = list(points.front)
    symbol = ["circle" if k in front else "circle-open" for k in range(len(points.names))]
    sides = ["bottom right" if left else "top left" for left in points.x < points.x.max() / 2]
    label = {"mode": "markers+text", "text": _labels(points), "textposition": sides, "textfont": {"size": 11}}
    path = {
        "mode": "lines",
        "x": _short(points.x[front]),
        "y": _short(points.y[front]),
        "line": GUIDE | {"shape": "hv"},
    }
    marker = {"size": 10, "color": colour, "symbol": symbol}
    return [path | {"hoverinfo": "skip"}, trace | label | {"marker": marker}]


def _labels(points: Points) -> list[str]:
    """Label the points on the front, best first, leaving out names that would touch another."""
    labels, taken = [""] * len(points.names), list[tuple[float, float, float]]()
    across, up = points.x / (points.x.max() or 1.0), (points.y - points.y.min()) / (np.ptp(points.y) or 1.0)
    for k in reversed(points.front or ()):
        wide = LETTER * min(len(points.names[k]), WIDEST)
        start, height = (across[k], up[k] - LINE) if across[k] < 0.5 else (across[k] - wide, up[k] + LINE)
        if all(start > e or start + wide < s or abs(height - h) > 2 * LINE for s, e, h in taken):
            labels[k] = _tick(points.names[k])
            taken.append((start, start + wide, height))
    return labels


def _layout(chart: Chart) -> dict[str, Any]:
    x, y = ({"title": {"text": title}, "automargin": True, "zeroline": False} for title in (chart.x, chart.y))
    rows, height = len(chart.names), 440
    if rows:
        places = {"tickvals": list(range(rows)), "ticktext": [_tick(name) for name in chart.names]}
        y |= places | {"range": [rows - 0.5, -0.5], "showgrid": False}
        height = 120 + rows * (30 if rows <= 40 else 16)
    for mark in chart.marks:
        if isinstance(mark, Points) and mark.front is not None:  # room for the names of points at the edge
            x |= {"range": _padded(np.array([0, mark.x.max()])), "tickformat": "~s" if mark.x.max() > 1000 else "~g"}
            y["range"] = _padded(mark.y)
    counted = [m.columns if isinstance(m, Heat) else m.x for m in chart.marks if isinstance(m, Heat | Curve)]
    if chart.x in ("round", "client") and max(places.max(initial=0) for places in counted) <= 12:
        x |= {"tick0": 0, "dtick": 1}  # no tick between two
    legend = not rows and any(getattr(mark, "name", "") for mark in chart.marks)
    return {"xaxis": x, "yaxis": y, "height": height, "showlegend": legend, "hovermode": "closest"}


def _padded(values: np.ndarray) -> list[float]:
    edge = 0.08 * np.ptp(values) or 1.0
    return [float(values.min() - edge), float(values.max() + edge)]


def _text(value: object) -> str:
    """Escape text for plotly.js, which interprets a few HTML tags in any text."""
    return html.escape(one_line(value), quote=False)


def _tick(name: str) -> str:
    """Shorten a long name in the middle: variants of a method begin alike and differ at the end."""
    half = WIDEST // 2
    return _text(name if len(name) <= WIDEST else f"{name[: half - 1]}…{name[-half:]}")


def _lines(name: str) -> list[str]:
    return [_text(line) for line in wrap(one_line(name), WIDEST + 8)]


def _short(values: Iterable[float]) -> list[float | None]:
    """Round numbers to keep the file small, more finely than a screen shows; null for missing ones."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]
