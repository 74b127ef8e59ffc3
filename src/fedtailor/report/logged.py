"""What a method logged while it ran (a period, mixing weights), over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtailor.experiment.headline import columns
from fedtailor.report.charts import Chart, Curve, save_picture
from fedtailor.report.results import Result

NAMED = 6  # up to this many clients are named in the legend
FEW = 30  # up to this many clients get a line each; more become a band
OF_EVERY_RUN = {
    *("round", "phase", "step", "best_round", "train_loss", "picked", "replied", "bytes_up", "bytes_down"),
    *(
        "missing",
        "rejected",
        "diverged",
        "attackers",
        "tolerated",
        "epsilon_rdp",
        "delta",
        "noise_multiplier",
        "loss",
        "lower_is_better",
    ),
}
PREFIXES = ("seconds_", "best_", "validation_")  # of names that every run logs

Series = dict[int, float]  # round (then closing step) -> value; one without a value is not there


def logged_picture(result: Result, path: Path) -> bool:
    """Draw one panel per name that a method logged; return False, and draw nothing, if it logged nothing."""
    charts = logged_charts(result)
    if charts:
        title = f"{result.method} on {result.config['data']['name']}, seed {result.seed}"
        save_picture(charts, path, size=(4.6, 3.4), title=title)
    return bool(charts)


def logged_charts(result: Result) -> list[Chart]:
    """Return one chart per name: the clients' curves (or the middle 80 % of many), their mean, and the server's curve."""
    server, clients = logged_by_server(result), logged_by_clients(result)
    means = {name: server.pop(f"{name}_mean") for name in clients if f"{name}_mean" in server}
    charts = []
    for name in [*clients, *(name for name in server if name not in clients)]:
        marks = client_curves(clients[name], means.get(name), result.client_names) if name in clients else []
        if name in server:
            whole = all(float(value).is_integer() for value in server[name].values())
            marks.append(_curve("server", server[name], steps=whole))
        charts.append(Chart("round", "", marks, title=name))
    return charts


def client_curves(clients: Mapping[int, Series], told: Series | None, names: Sequence[str]) -> list[Curve]:
    """Return the mean (the server's, if it logged one) and every client's curve or, for many clients, a band with 80 % of them."""
    rounds = sorted({t for series in clients.values() for t in series})
    values = [[series[t] for series in clients.values() if t in series] for t in rounds]
    mean = _curve("mean of clients", told or dict(zip(rounds, map(np.mean, values), strict=True)))
    if len(clients) <= FEW:
        named = len(clients) <= NAMED and max(clients) < len(names)
        each = [_curve(names[i] if named else "each client", clients[i], thin=not named) for i in sorted(clients)]
        return [*each, mean]
    low, high = (np.interp(mean.x, rounds, [np.percentile(v, p) for v in values]) for p in (10, 90))
    return [replace(mean, name="mean and 80 % of clients", low=low, high=high)]


def logged_by_server(result: Result) -> dict[str, Series]:
    """Return each name that the server logged, with its value in each round that has one."""
    series: dict[str, Series] = {}
    metrics = ["accuracy", *result.scores]
    ours = {*OF_EVERY_RUN, *(name for m in metrics for names in columns(m).values() for name in names)}
    ours |= {f"{m}_undefined" for m in metrics}
    for record in result.records:
        for name, value in record.items():
            if name not in ours and not name.startswith(PREFIXES) and isinstance(value, int | float):
                series.setdefault(name, {})[record["round"]] = value
    return series


def logged_by_clients(result: Result) -> dict[str, dict[int, Series]]:
    """Return each name that clients logged in rounds or, after these, in closing steps, with the series of each client."""
    series: dict[str, dict[int, Series]] = {}
    for line in result.lines:
        moment = line["round"] + line.get("step", 0)
        for client, values in line["logged"].items():
            for name, value in values.items():
                if value is not None:
                    series.setdefault(name, {}).setdefault(int(client), {})[moment] = value
    return series


def _curve(name: str, series: Series, *, steps: bool = False, thin: bool = False) -> Curve:
    rounds = sorted(series)
    return Curve(name, np.array(rounds), np.array([series[t] for t in rounds], dtype=float), steps=steps, thin=thin)
