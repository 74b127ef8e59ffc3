"""What a method logged while it ran (a period, mixing weights), over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtailor.analysis.results import Result
from fedtailor.experiment.headline import columns
from fedtailor.report.charts import Chart, Series, save_picture

NAMED = 6  # up to this many clients are named in the legend
FEW = 30  # up to this many clients get a line each; more become a band
OF_EVERY_RUN = {
    *("round", "phase", "step", "best_round", "train_loss", "loss", "picked", "replied", "bytes_up", "bytes_down"),
    *("missing", "rejected", "diverged", "attackers", "tolerated", "epsilon_rdp", "delta", "noise_multiplier"),
    "lower_is_better",
}
PREFIXES = ("seconds_", "best_", "validation_")  # of names that every run logs

Values = dict[int, float]  # by round (then closing step); one without a value is not there


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
    for name in dict.fromkeys([*clients, *server]):
        lines = client_curves(clients[name], means.get(name), result.client_names) if name in clients else []
        if name in server:
            x, y = _arrays(server[name])
            lines.append(Series("server", x, y, steps=bool((y == y.round()).all())))
        charts.append(Chart("round", "", lines, title=name))
    return charts


def client_curves(clients: Mapping[int, Values], mean: Values | None, names: Sequence[str]) -> list[Series]:
    """Return the mean (the server's, if it logged one) and every client's curve or, for many clients, a band with 80 % of them."""
    rounds = sorted({t for values in clients.values() for t in values})
    found = [[values[t] for values in clients.values() if t in values] for t in rounds]
    x, y = _arrays(mean or dict(zip(rounds, map(np.mean, found), strict=True)))
    if len(clients) > FEW:
        low, high = (np.interp(x, rounds, [np.percentile(v, p) for v in found]) for p in (10, 90))
        return [Series("mean and 80 % of clients", x, y, low, high)]
    if len(clients) <= NAMED and max(clients) < len(names):
        each = [Series(names[i], *_arrays(clients[i])) for i in sorted(clients)]
    else:
        each = [Series("each client", *_arrays(clients[i]), kind="guide") for i in sorted(clients)]
    return [*each, Series("mean of clients", x, y)]


def logged_by_server(result: Result) -> dict[str, Values]:
    """Return each name that the server logged, with its value in each round that has one."""
    found: dict[str, Values] = {}
    metrics = ["accuracy", *result.scores]
    known = OF_EVERY_RUN | {name for m in metrics for names in columns(m).values() for name in names}
    known |= {f"{m}_undefined" for m in metrics}
    for record in result.records:
        for name, value in record.items():
            if name not in known and not name.startswith(PREFIXES) and isinstance(value, int | float):
                found.setdefault(name, {})[record["round"]] = value
    return found


def logged_by_clients(result: Result) -> dict[str, dict[int, Values]]:
    """Return each name that clients logged in rounds or, after these, in closing steps, with the values of each client."""
    found: dict[str, dict[int, Values]] = {}
    for line in result.lines:
        moment = line["round"] + line.get("step", 0)
        for client, values in line["logged"].items():
            for name, value in values.items():
                if value is not None:
                    found.setdefault(name, {}).setdefault(int(client), {})[moment] = value
    return found


def _arrays(values: Values) -> tuple[np.ndarray, np.ndarray]:
    rounds = sorted(values)
    return np.array(rounds), np.array([values[t] for t in rounds], dtype=float)
