"""Every client by itself: its accuracy under each method, and the labels it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.report.charts.style import (
    MOST_TEXTS,
    Chart,
    Groups,
    axis,
    counting_axis,
    heat,
    looks,
    names_axis,
    numbers,
    some_of,
    tall,
    text,
)
from fedtailor.report.results import Labels, Result

FEW_POINTS = 4000  # in all: so many clients are drawn one by one beside their boxes
QUANTILES = 200  # of more clients, enough for the same box


def client_boxes(groups: Groups) -> Chart:
    """Every client's last accuracy, a box a method, the clients of all its runs together."""
    few = sum(len(run.clients) for runs in groups.values() for run in runs) <= FEW_POINTS
    looking = zip(groups.items(), looks(), strict=False)
    traces = [_box(place, name, runs, colour, few) for place, ((name, runs), (colour, _)) in enumerate(looking)]
    axes = {"xaxis": axis("accuracy of each client (%)"), "yaxis": names_axis(list(groups))}
    return {"data": traces, "layout": axes | {"height": tall(len(groups), 34), "boxmode": "overlay"}}


def client_heat(runs: Mapping[str, Result]) -> Chart:
    """Each client's last accuracy (columns) under each method (rows), one run a method."""
    largest = max(runs.values(), key=lambda run: len(run.clients))
    shown = some_of(len(largest.clients))
    grid = np.full((len(runs), len(largest.clients)), np.nan)
    for row, run in zip(grid, runs.values(), strict=True):
        row[: len(run.clients)] = 100 * run.clients
    clients = [text(name) for name in client_names(largest)]
    few = len(runs) * len(shown) <= MOST_TEXTS
    texts = [[f"{text(name)}<br>{clients[i]}" for i in shown] for name in runs] if few else []
    trace = heat([numbers(row[shown]) for row in grid], shown, texts, "%", power=1)
    axes = {"xaxis": _clients_axis(len(largest.clients)), "yaxis": names_axis(list(runs))}
    return {"data": [trace], "layout": axes | {"height": tall(len(runs), 24)}}


def label_heat(labels: Labels) -> Chart:
    """How many training samples of each class (rows) each client (columns) holds; a cell without any stays blank."""
    clients, classes = labels.counts.shape
    shown = some_of(clients)
    counts = labels.counts[shown].T
    names = [text(labels.clients[i]) for i in shown]
    few = counts.size <= MOST_TEXTS
    texts = [[f"{client}<br>class {text(label)}" for client in names] for label in labels.labels] if few else []
    rows = [[int(count) or None for count in row] for row in counts]
    trace = heat(rows, shown, texts, "samples", power=2) | {"zmin": 0, "zmax": int(max(1, counts.max()))}
    ticks = names_axis(labels.labels) if classes <= 40 else axis("class") | {"showgrid": False}
    height = 130 + int(np.clip(18 * classes, 120, 640))
    return {"data": [trace], "layout": {"xaxis": _clients_axis(clients), "yaxis": ticks, "height": height}}


def client_names(run: Result) -> list[str]:
    known = run.labels
    if known is not None and len(known.clients) == len(run.clients):
        return known.clients
    return [f"client {i}" for i in range(len(run.clients))]


def _clients_axis(count: int) -> dict[str, Any]:
    return counting_axis("client", count) | {"showgrid": False}


def _box(place: int, name: str, runs: Sequence[Result], colour: str, few: bool) -> dict[str, Any]:
    values = 100 * np.concatenate([run.clients for run in runs])
    known = np.isfinite(values)
    points: dict[str, Any] = {"x": numbers(values[known]), "boxpoints": False}
    if few:
        who = [f"{text(client)}, seed {run.seed}" for run in runs for client in client_names(run)]
        named = [w for w, tested in zip(who, known, strict=True) if tested]
        points |= {"boxpoints": "all", "pointpos": 0, "jitter": 0.6, "text": named}
    elif known.sum() > QUANTILES:
        points["x"] = numbers(np.quantile(values[known], np.linspace(0, 1, QUANTILES)))
    return points | {
        "type": "box",
        "orientation": "h",
        "name": text(name),
        "uid": name,
        "y0": place,
        "marker": {"color": colour, "size": 4, "opacity": 0.6},
        "line": {"width": 1.5},
        "hoverinfo": "x+text+name",
        "showlegend": False,
    }
