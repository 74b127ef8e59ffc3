"""Whose labels are like whose: what FedSimSup's server knows of the clients, as one picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedtailor.learning.similarity import label_similarity

NUMBERED = 12  # up to so many clients, each cell shows its number


def similarity_picture(counts: np.ndarray, path: Path) -> None:
    similarity_figure(counts).savefig(path, dpi=130)


def similarity_figure(counts: np.ndarray) -> Figure:
    """The cosine of every two clients' labels (`counts` is clients × classes) as a square of shades from 0, white, to 1, dark."""
    similarity = label_similarity(torch.from_numpy(np.asarray(counts, dtype=np.float64))).numpy()
    clients = len(similarity)
    side = float(np.clip(0.2 * clients, 3.6, 7.0))
    figure = Figure(figsize=(side + 1.1, side + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # a canvas of its own: nothing of pyplot's global state
    axes = figure.subplots()
    image = axes.imshow(similarity, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="Similarity (cosine of label shares)", shrink=0.85).outline.set_visible(False)
    if clients <= NUMBERED:
        _write_numbers(axes, similarity)
    others = similarity[~np.eye(clients, dtype=bool)]
    mean = f": {others.mean():.2f} on average" if len(others) else ""
    axes.set(xlabel="Client", ylabel="Client")
    axes.set_title(f"How alike the labels of {clients:,} clients are{mean}", fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(NUMBERED, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.tick_params(length=2.5, labelsize=8)
    axes.spines[:].set(color="#8a939d", linewidth=0.6)
    return figure


def _write_numbers(axes: Axes, similarity: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(similarity):
        ink = "white" if value > 0.55 else "#1f2933"
        axes.text(column, row, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=7, color=ink)
