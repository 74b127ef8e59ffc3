"""The figures that a paper's preset asks for, drawn from its runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from fedtailor.analysis.results import Result, read_result
from fedtailor.experiment.config import Config
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.onboarding import finished_simulation
from fedtailor.learning.similarity import label_similarity
from fedtailor.papers.by_label import accuracy_by_label, telling_client
from fedtailor.papers.comparison import Comparison
from fedtailor.papers.landscape import axis, surface_of
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.reproduction import FULL
from fedtailor.report.charts import Chart, Heat, Series, curves
from fedtailor.report.logged import logged_by_clients, logged_by_server
from fedtailor.report.pictures import panels, save

END = 0.15  # share of the rounds that the close-up of the end shows
SCHEDULE = {"tau": "rounds between two aggregations, τ", "alpha_mean": "mean weight of the own head, ᾱ"}
STAGES = {
    "alignment_": "alignment of global features\nwith personal prototypes (cosine)",
    "norm_spread_": "spread of feature norms",
}
SIZES = {"stages": (3.8, 3.6), "similarity": (6.4, 5.4)}  # inches of a panel that is not of the usual size


def draw_figures(comparison: Comparison, out: Path) -> list[Path]:
    """Draw each figure as PNG and SVG with the scale noted below it; a figure whose runs are all missing is left out."""
    drawn = []
    for name in comparison.preset.figures:
        found = FIGURES[name](comparison) if any(e.values for e in comparison.entries) else ()
        if not found:
            continue
        figure = found if isinstance(found, Figure) else panels(found, SIZES.get(name, (5.2, 4.2)))
        said = f"{comparison.preset.name}. Scale: {comparison.scale or FULL}."
        lines = textwrap.wrap(said, int(16 * figure.get_figwidth()), break_on_hyphens=False)
        figure.supxlabel("\n".join(lines), fontsize=8, color="#555555")
        for suffix in ("png", "svg"):
            drawn.append(out / f"{name}.{suffix}")
            save(figure, drawn[-1], dpi=150)
    return drawn


def results_of(comparison: Comparison, column: str) -> dict[str, list[Result]]:
    """Return the finished runs of each row."""
    found = {row: [read_result(path) for path in comparison.folders(row, column)] for row in comparison.preset.rows}
    return {row: runs for row, runs in found.items() if runs}


def by_column(comparison: Comparison) -> list[Chart]:
    """One panel per column, one line per row."""
    found = {name: results_of(comparison, name) for name in comparison.preset.columns}
    return [curves(runs, Headline(), name) for name, runs in found.items() if runs]


def whole_and_end(comparison: Comparison) -> list[Chart]:
    """All rounds, and a close-up of the last ones."""
    whole = next(iter(by_column(comparison)), None)
    if whole is None:
        return []
    begin = (1 - END) * max(line.x[-1] for line in whole.series)
    return [whole, replace(whole, series=[line[line.x >= begin] for line in whole.series], title="the last rounds")]


def schedule(comparison: Comparison) -> list[Chart]:
    """What the server logged in the runs of the first seed: one panel per name, one line per row."""
    runs = results_of(comparison, comparison.preset.columns[0])
    logged = {row: logged_by_server(group[0]) for row, group in runs.items()}
    charts = []
    for name, title in SCHEDULE.items():
        found = {row: np.array(sorted(values[name].items())).T for row, values in logged.items() if name in values}
        lines = [Series(row, x, y, steps=name == "tau") for row, (x, y) in found.items()]
        charts += [Chart("round", title, lines)] if lines else []
    return charts


def ablation(comparison: Comparison) -> list[Chart]:
    """One panel per column, one bar per row with its spread over seeds, and a hollow dot at the published number."""
    charts = []
    for column, cells in comparison.reproduction.columns.items():
        if all(cell.measured is None for cell in cells):
            continue
        places = np.arange(len(cells))
        height, std = (np.array([getattr(c, k) or 0.0 for c in cells]) for k in ("measured", "measured_std"))
        published = np.array([np.nan if c.published is None else c.published for c in cells])
        bars = Series("measured", places, height, height - std, height + std, "bars")
        dots = [Series("published", places, published, kind="hollow")] if np.isfinite(published).any() else []
        title = MEASURES[cells[0].measure].short + " (%)"
        charts.append(Chart("", title, [bars, *dots], [cell.method for cell in cells], column))
    return charts


def stages(comparison: Comparison) -> list[Chart]:
    """Three panels over the rows: accuracy, and the means over stages and clients of the values logged last."""
    column = comparison.preset.columns[0]
    runs = results_of(comparison, column)
    shown = {"personal accuracy (%)": {e.cell.row: e.values for e in comparison.column(column) if e.values}}
    for prefix, title in STAGES.items():
        shown[title] = {row: tuple(last_logged(run, prefix) for run in group) for row, group in runs.items()}
    charts = []
    for title, rows in shown.items():
        mean, std = (np.array([f(values) for values in rows.values()]) for f in (np.mean, np.std))
        line = Series("", np.arange(len(mean)), mean, mean - std, mean + std)
        charts.append(Chart("aligned by direction", title, [line], list(rows), column))
    return charts


def last_logged(result: Result, prefix: str) -> float:
    """Return the mean of a logged value over all stages and clients, each client in the round in which it last took part."""
    found = [clients for name, clients in logged_by_clients(result).items() if name.startswith(prefix)]
    last = [values[max(values)] for clients in found for values in clients.values()]
    return float(np.mean(last)) if last else float("nan")


def by_label(comparison: Comparison) -> list[Chart]:
    """One client: the labels it trains on, and its model's accuracy on every label, rows side by side."""
    column = comparison.preset.columns[0]
    found = {row: comparison.folders(row, column) for row in comparison.preset.rows}
    runs = {row: [finished_simulation(path) for path in paths] for row, paths in found.items() if paths}
    counts = next(iter(runs.values()))[0].federation.label_counts
    client, places = telling_client(counts), np.arange(counts.shape[1])
    bars = []
    for row, simulations in runs.items():
        accuracy = np.mean([accuracy_by_label(s, s.personal(client)) for s in simulations], axis=0)
        bars.append(Series(row, places, 100 * accuracy, kind="bars"))
    samples = Series("", places, counts[client], kind="bars")
    held = Chart("label", "training samples", [samples], title=f"labels of client {client}, {column}")
    title = f"the personal model of client {client} on all clients' test samples"
    return [held, Chart("label", "accuracy on the label (%)", bars, title=title)]


def surface(comparison: Comparison) -> Figure:
    """Loss surfaces of all rows on one scale, and how far each rises on average above its centre."""
    column = comparison.preset.columns[0]
    paths = {row: found[0] for row in comparison.preset.rows if (found := comparison.folders(row, column))}
    surfaces = {row: surface_of(path) for row, path in paths.items()}
    low, high = (f([f(s) for s in surfaces.values()]) for f in (np.nanmin, np.nanmax))
    rows, columns = -(-len(surfaces) // 2), min(2, len(surfaces))
    figure = Figure(figsize=(4.4 * columns, 3.9 * rows), layout="constrained")
    a, b = np.meshgrid(axis(), axis(), indexing="ij")
    for place, (row, losses) in enumerate(surfaces.items(), 1):
        axes = figure.add_subplot(rows, columns, place, projection="3d")
        axes.plot_surface(a, b, losses, cmap="cividis", vmin=low, vmax=high, lw=0.2, edgecolor="#444444")
        rise = losses.mean() - losses[len(losses) // 2, len(losses) // 2]
        axes.set_title(f"{row}\nmean rise {rise:.2f}", fontsize=9)
        axes.set(zlim=(low, high), xlabel="direction 1", ylabel="direction 2", zlabel="loss")
        axes.tick_params(labelsize=7, pad=0)
    return figure


def similarity(comparison: Comparison) -> list[Chart]:
    """How alike the clients' labels are in the partition that the runs share."""
    paths = comparison.folders(comparison.preset.rows[0], comparison.preset.columns[0])
    return [similarity_chart(Config.load(path / "config.toml").federation().label_counts) for path in paths[:1]]


def similarity_chart(counts: np.ndarray) -> Chart:
    """The cosine of every two clients' labels (`counts` is clients × classes), from pale (0) to dark (1)."""
    cosines = label_similarity(torch.from_numpy(np.asarray(counts, dtype=np.float64))).numpy()
    others = cosines[~np.eye(len(cosines), dtype=bool)]
    mean = f": {others.mean():.2f} on average" if len(others) else ""
    title = f"How alike the labels of {len(cosines):,} clients are{mean}"
    return Chart("client", "client", title=title, heat=Heat(cosines, "similarity (cosine of label counts)"))


FIGURES: dict[str, Callable[[Comparison], Sequence[Chart] | Figure]] = {
    "curves": by_column,
    "curves-and-end": whole_and_end,
    "schedule": schedule,
    "by-label": by_label,
    "ablation": ablation,
    "stages": stages,
    "surface": surface,
    "similarity": similarity,
}
