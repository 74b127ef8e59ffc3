"""What a method logged while it ran (a period, mixing weights), drawn over rounds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.experiment.evaluation import summarize
from fedtailor.files import replacing
from fedtailor.report.results import Result

FEW = 30  # clients with a line each; more become a band
OF_EVERY_RUN = {
    *("round", "phase", "step", "best_round", "train_loss", "picked", "replied", "bytes_up", "bytes_down"),
    *("missing", "rejected", "diverged"),
    *summarize({}),
    *("best_accuracy", "best_accuracy_mean"),
}

Series = dict[int, float]  # round -> value; a round without one is not there


def logged_picture(result: Result, path: Path) -> bool:
    """A panel for each name a method logged; if it logged nothing there is no picture, and the answer is False."""
    server, clients = logged_by_server(result), logged_by_clients(result)
    means = {name: server.pop(f"{name}_mean") for name in clients if f"{name}_mean" in server}
    names = [*clients, *(name for name in server if name not in clients)]
    if not names:
        return False
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4.6 * columns, 0.4 + 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        if name in clients:
            _draw_clients(axes, list(clients[name].values()), means.get(name))
        if name in server:
            _draw_server(axes, server[name], beside_clients=name in clients)
        _dress(axes, name, rounds=result.records[-1]["round"])
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    figure.suptitle(f"{result.method} on {result.config['data']['name']}, seed {result.seed}", fontsize=11)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=130)
    return True


def logged_by_server(result: Result) -> dict[str, Series]:
    """Each name the server logged, with its value in each round that has one."""
    series: dict[str, Series] = {}
    for record in result.records:
        for name, value in record.items():
            if name not in OF_EVERY_RUN and not name.startswith("seconds_") and isinstance(value, int | float):
                series.setdefault(name, {})[record["round"]] = value
    return series


def logged_by_clients(result: Result) -> dict[str, dict[int, Series]]:
    """Each name clients logged, with the series of each client."""
    series: dict[str, dict[int, Series]] = {}
    for line in result.lines:
        for client, values in line["logged"].items() if line["phase"] == "round" else ():
            for name, value in values.items():
                if value is not None:
                    series.setdefault(name, {}).setdefault(int(client), {})[line["round"]] = value
    return series


def _draw_clients(axes: Axes, clients: list[Series], told: Series | None) -> None:
    """Every client, or the middle four fifths of many, and their mean (as the server logged it, if it did)."""
    rounds = sorted({t for series in clients for t in series})
    values = [[series[t] for series in clients if t in series] for t in rounds]
    if len(clients) <= FEW:
        for k, series in enumerate(clients):
            label = "each client" if k == 0 else None
            axes.plot(*_points(series), "-", marker=".", ms=2.5, lw=0.7, color="#56B4E9", alpha=0.7, label=label)
    else:
        low, high = (np.array([np.percentile(v, p) for v in values]) for p in (10, 90))
        axes.fill_between(rounds, low, high, color="#56B4E9", alpha=0.35, lw=0, label="80 % of clients")
    mean = told or dict(zip(rounds, map(float, map(np.mean, values)), strict=True))
    axes.plot(*_points(mean), "-", marker="o", ms=3, lw=1.8, color="#0072B2", label="mean of clients")
    axes.legend(frameon=False, fontsize=8)


def _draw_server(axes: Axes, series: Series, *, beside_clients: bool) -> None:
    rounds, values = _points(series)
    whole = all(float(v).is_integer() for v in values)
    style = "steps-mid" if whole else "default"
    axes.plot(rounds, values, "-", drawstyle=style, marker="o", ms=3, lw=1.8, color="#D55E00", label="server")
    if whole:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if beside_clients:
        axes.legend(frameon=False, fontsize=8)


def _points(series: Series) -> tuple[list[int], list[float]]:
    rounds = sorted(series)
    return rounds, [series[t] for t in rounds]


def _dress(axes: Axes, name: str, rounds: int) -> None:
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("round")
    axes.set_xlim(1 - 0.03 * rounds, 1.03 * rounds)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
