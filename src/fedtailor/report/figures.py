"""The figures that a paper's preset asks for, drawn from its runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from fedtailor.analysis.results import Result, read_result
from fedtailor.experiment.config import Config
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.onboarding import finished_simulation
from fedtailor.files import replacing
from fedtailor.learning.similarity import label_similarity
from fedtailor.papers.by_label import accuracy_by_label, telling_client
from fedtailor.papers.comparison import Comparison
from fedtailor.papers.landscape import axis, surface_of
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.reproduction import FULL
from fedtailor.report.charts import Chart, Heat, Series, curves
from fedtailor.report.logged import logged_by_clients, logged_by_server
from fedtailor.report.pictures import panels

END = 0.15  # share of the rounds that the close-up of the end shows
NUMBERED = 12  # up to this many clients, each cell of a similarity matrix shows its number
SCHEDULE = {"tau": "rounds between two aggregations, τ", "alpha_mean": "mean weight of the own head, ᾱ"}
STAGES = {
    "alignment_": "alignment of global features\nwith personal prototypes (cosine)",
    "norm_spread_": "spread of feature norms",
}


def draw_figures(comparison: Comparison, out: Path) -> list[Path]:
    """Draw each figure as PNG and SVG with the scale noted below it; a figure whose runs are all missing is left out."""
    drawn = []
    for name in comparison.preset.figures:
        figure = FIGURES[name](comparison) if any(e.values for e in comparison.entries) else None
        if figure is not None:
            said = f"{comparison.preset.name}. Scale: {comparison.scale or FULL}."
            lines = textwrap.wrap(said, int(16 * figure.get_figwidth()), break_on_hyphens=False)
            figure.supxlabel("\n".join(lines), fontsize=8, color="#555555")
            for suffix in ("png", "svg"):
                drawn.append(out / f"{name}.{suffix}")
                with replacing(drawn[-1]) as draft:
                    figure.savefig(draft, dpi=150)
    return drawn


def results_of(comparison: Comparison, column: str) -> dict[str, list[Result]]:
    """Return the finished runs of each row."""
    found = {row: [read_result(path) for path in comparison.folders(row, column)] for row in comparison.preset.rows}
    return {row: runs for row, runs in found.items() if runs}


def curves_figure(comparison: Comparison) -> Figure | None:
    """One panel per column, one line per row."""
    found = {name: runs for name in comparison.preset.columns if (runs := results_of(comparison, name))}
    return panels([curves(runs, Headline(), name) for name, runs in found.items()]) if found else None


def curves_and_end_figure(comparison: Comparison) -> Figure | None:
    """All rounds, and a close-up of the last ones."""
    column = comparison.preset.columns[0]
    runs = results_of(comparison, column)
    if not runs:
        return None
    whole, end = (curves(runs, Headline(), title) for title in (column, "the last rounds"))
    figure = panels([whole, end])
    last = max(line.x[-1] for line in end.series)
    values = np.concatenate([line.y[line.x >= (1 - END) * last] for line in end.series])
    margin = 0.08 * np.ptp(values) or 0.5
    figure.axes[1].set(xlim=((1 - END) * last, last), ylim=(values.min() - margin, values.max() + margin))
    return figure


def schedule_figure(comparison: Comparison) -> Figure | None:
    """What the server logged in the runs of the first seed: one panel per name, one line per row."""
    runs = results_of(comparison, comparison.preset.columns[0])
    logged = {row: logged_by_server(group[0]) for row, group in runs.items()}
    charts = []
    for name, title in SCHEDULE.items():
        found = {row: np.array(sorted(values[name].items())).T for row, values in logged.items() if name in values}
        lines = [Series(row, x, y, steps=name == "tau") for row, (x, y) in found.items()]
        charts += [Chart("round", title, lines)] if lines else []
    return panels(charts) if charts else None


def ablation_figure(comparison: Comparison) -> Figure | None:
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
    return panels(charts)


def stages_figure(comparison: Comparison) -> Figure | None:
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
    return panels(charts, size=(3.8, 3.6))


def last_logged(result: Result, prefix: str) -> float:
    """Return the mean of a logged value over all stages and clients, each client in the round in which it last took part."""
    series = [clients for name, clients in logged_by_clients(result).items() if name.startswith(prefix)]
    last = [values[max(values)] for clients in series for values in clients.values()]
    return float(np.mean(last)) if last else float("nan")


def by_label_figure(comparison: Comparison) -> Figure | None:
    """One client: the labels it trains on, and its model's accuracy on every label, rows side by side."""
    column = comparison.preset.columns[0]
    found = {row: comparison.folders(row, column) for row in comparison.preset.rows}
    runs = {row: [finished_simulation(path) for path in paths] for row, paths in found.items() if paths}
    counts = next(iter(runs.values()))[0].federation.label_counts
    client = telling_client(counts)
    places = np.arange(counts.shape[1])
    bars = []
    for row, simulations in runs.items():
        accuracy = np.mean([accuracy_by_label(s, s.personal(client)) for s in simulations], axis=0)
        bars.append(Series(row, places, 100 * accuracy, kind="bars"))
    samples = Series("", places, counts[client], kind="bars")
    held = Chart("label", "training samples", [samples], title=f"labels of client {client}, {column}")
    title = f"the personal model of client {client} on all clients' test samples"
    return panels([held, Chart("label", "accuracy on the label (%)", bars, title=title)])


def surface_figure(comparison: Comparison) -> Figure | None:
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


def similarity_figure(comparison: Comparison) -> Figure | None:
    """How alike the clients' labels are in the partition that the runs share."""
    preset = comparison.preset
    paths = comparison.folders(preset.rows[0], preset.columns[0])
    return label_similarity_figure(Config.load(paths[0] / "config.toml").federation().label_counts) if paths else None


def label_similarity_figure(counts: np.ndarray) -> Figure:
    """The cosine of every two clients' labels (`counts` is clients × classes), from pale (0) to dark (1)."""
    similarity = label_similarity(torch.from_numpy(np.asarray(counts, dtype=np.float64))).numpy()
    clients = len(similarity)
    others = similarity[~np.eye(clients, dtype=bool)]
    mean = f": {others.mean():.2f} on average" if len(others) else ""
    side = float(np.clip(0.2 * clients, 3.6, 7.0))
    heat = Heat(similarity, "similarity (cosine of label counts)")
    title = f"How alike the labels of {clients:,} clients are{mean}"
    figure = panels([Chart("client", "client", title=title, heat=heat)], size=(side + 1.1, side + 0.6))
    for (row, column), value in np.ndenumerate(similarity if clients <= NUMBERED else np.empty((0, 0))):
        ink, text = "white" if value > 0.55 else "#1f2933", f"{value:.2f}".removeprefix("0")
        figure.axes[0].text(column, row, text, ha="center", va="center", fontsize=7, color=ink)
    return figure


FIGURES: dict[str, Callable[[Comparison], Figure | None]] = {
    "curves": curves_figure,
    "curves-and-end": curves_and_end_figure,
    "schedule": schedule_figure,
    "by-label": by_label_figure,
    "ablation": ablation_figure,
    "stages": stages_figure,
    "surface": surface_figure,
    "similarity": similarity_figure,
}
