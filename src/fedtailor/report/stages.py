"""How many stages are aligned by direction: accuracy, alignment and spread of norms."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedtailor.papers.comparison import Comparison
from fedtailor.report.curves import results
from fedtailor.report.logged import logged_by_clients
from fedtailor.report.pictures import COLOURS, MARKERS, plain
from fedtailor.report.results import Result

LOGGED = {
    "alignment_": "alignment of global features\nwith personal prototypes (cosine)",
    "norm_spread_": "spread of feature norms",
}


def stages_figure(comparison: Comparison) -> Figure | None:
    """Three panels over the rows: accuracy, and the means over stages and clients of what they logged last."""
    column = comparison.preset.columns[0]
    runs = results(comparison, column)
    if not runs:
        return None
    accuracy = {e.cell.row: e.values for e in comparison.column(column) if e.values}
    panels = {"personal accuracy (%)": accuracy}
    for prefix, title in LOGGED.items():
        panels[title] = {row: tuple(last_logged(run, prefix) for run in group) for row, group in runs.items()}
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for place, (axes, (title, rows)) in enumerate(zip(figure.subplots(1, 3), panels.items(), strict=True)):
        means, spread = ([f(values) for values in rows.values()] for f in (np.mean, np.std))
        axes.errorbar(list(rows), means, spread, color=COLOURS[place], marker=MARKERS[place], capsize=3, lw=1.8)
        plain(axes, "aligned by direction", title)
        axes.tick_params(axis="x", labelsize=8)
    figure.suptitle(column, fontsize=10)
    return figure


def last_logged(result: Result, prefix: str) -> float:
    """Mean over all stages, and over clients in the round in which each last took part."""
    series = [clients for name, clients in logged_by_clients(result).items() if name.startswith(prefix)]
    last = [values[max(values)] for clients in series for values in clients.values()]
    return float(np.mean(last)) if last else float("nan")
