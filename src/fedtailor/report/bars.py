"""Rows of a figure side by side as bars: an ablation, and the labels of one client."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import nn

from fedtailor.experiment.onboarding import finished_simulation
from fedtailor.experiment.simulation import Simulation
from fedtailor.papers.comparison import Comparison
from fedtailor.papers.measures import MEASURES
from fedtailor.report.pictures import COLOURS, plain

ON_BAR: dict[str, Any] = {
    "va": "center",
    "fontsize": 9,
    "bbox": {"boxstyle": "round", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
}
HATCHES = ("", "//", "..", "xx", "--", "oo")


def ablation_figure(comparison: Comparison) -> Figure | None:
    """A panel a column with a bar a row, its spread over seeds, and a diamond at the published number where there is one."""
    columns = [c for c in comparison.preset.columns if any(e.values for e in comparison.column(c))]
    if not columns:
        return None
    figure = Figure(figsize=(4.8 * len(columns), 4.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        entries = comparison.column(name)
        for place, entry in enumerate(entries):
            if entry.measured is not None:
                axes.bar(place, entry.measured, 0.65, yerr=entry.measured_std, **_look(place))
                axes.text(place, entry.measured / 2, f"{entry.measured:.2f}", ha="center", **ON_BAR)
            if entry.cell.published is not None:
                axes.plot(place, entry.cell.published, "D", color="black", ms=7, mfc="white", label="published")
        axes.set_xticks(range(len(entries)), [_folded(e.cell.row) for e in entries], fontsize=8)
        plain(axes, "", MEASURES[entries[0].cell.measure].short + " (%)")
        axes.set_title(name, fontsize=10)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
    return figure


def by_label_figure(comparison: Comparison) -> Figure | None:
    """One client: the labels it trains on, and how its model does on every label, rows side by side."""
    column = comparison.preset.columns[0]
    found = {row: comparison.folders(row, column) for row in comparison.preset.rows}
    runs = {row: [finished_simulation(path) for path in paths] for row, paths in found.items() if paths}
    if not runs:
        return None
    counts = next(iter(runs.values()))[0].federation.label_counts
    client = telling_client(counts)
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    labels, accuracy = figure.subplots(1, 2, width_ratios=(1, 1.4))
    labels.bar(range(counts.shape[1]), counts[client], color=COLOURS[0])
    plain(labels, "label", "training samples")
    labels.set_title(f"labels of client {client}, {column}", fontsize=10)
    for place, (row, simulations) in enumerate(runs.items()):
        scores = np.mean([accuracy_by_label(s, s.personal(client)) for s in simulations], axis=0)
        _side_by_side(accuracy, place, len(runs), row, 100 * scores)
    plain(accuracy, "label", "accuracy on the label (%)")
    accuracy.set_title(f"the personal model of client {client} on all clients' test samples", fontsize=10)
    for axes in (labels, accuracy):
        axes.xaxis.set_major_locator(MaxNLocator(20, integer=True, steps=[1, 2, 5, 10]))
    accuracy.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


def telling_client(counts: np.ndarray) -> int:
    """The client with most labels among those that lack one, so that both few and no samples of a label can be seen."""
    held = (counts > 0).sum(axis=1)
    lacking = np.where(held < counts.shape[1], held, -1)
    return int(np.argmax(lacking))


@torch.inference_mode()
def accuracy_by_label(simulation: Simulation, model: nn.Module) -> np.ndarray:
    """Of each label, the share of all clients' test samples that the model gets right; NaN for a label without any."""
    model.eval()
    right, total = (torch.zeros(simulation.federation.classes, dtype=torch.float64) for _ in range(2))
    for i, client in enumerate(simulation.federation.clients):
        for x, y in simulation.worker.samples(client.test, (i, "test")).chunks():
            hits = (model(x).argmax(1) == y).double().cpu()
            right.index_add_(0, y.cpu(), hits)
            total.index_add_(0, y.cpu(), torch.ones_like(hits))
    return (right / total).numpy()


def _side_by_side(axes: Axes, place: int, of: int, label: str, heights: np.ndarray) -> None:
    width = 0.8 / of
    at = np.arange(len(heights)) - 0.4 + width * (place + 0.5)
    axes.bar(at, np.nan_to_num(heights), width, label=label, **_look(place))


def _look(place: int) -> dict[str, Any]:
    return {
        "color": COLOURS[place % len(COLOURS)],
        "hatch": HATCHES[place % len(HATCHES)],
        "edgecolor": "white",
    }


def _folded(text: str) -> str:
    return text.replace(", ", ",\n").replace(" and ", "\nand ")
