"""Loss surfaces in three dimensions, a panel a row."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedtailor.papers.comparison import Comparison
from fedtailor.papers.landscape import axis, surface_of


def surface_figure(comparison: Comparison) -> Figure | None:
    """The surfaces of all rows with one scale of heights, and how far each rises on average above its centre."""
    column = comparison.preset.columns[0]
    paths = {row: found[0] for row in comparison.preset.rows if (found := comparison.folders(row, column))}
    surfaces = {row: surface_of(path) for row, path in paths.items()}
    if not surfaces:
        return None
    low, high = (f([f(s) for s in surfaces.values()]) for f in (np.nanmin, np.nanmax))
    figure = Figure(figsize=(4.4 * min(2, len(surfaces)), 3.9 * -(-len(surfaces) // 2)), layout="constrained")
    a, b = np.meshgrid(axis(), axis(), indexing="ij")
    for place, (row, losses) in enumerate(surfaces.items(), 1):
        axes = figure.add_subplot(-(-len(surfaces) // 2), min(2, len(surfaces)), place, projection="3d")
        axes.plot_surface(a, b, losses, cmap="cividis", vmin=low, vmax=high, lw=0.2, edgecolor="#444444")
        rise = losses.mean() - losses[len(losses) // 2, len(losses) // 2]
        axes.set_title(f"{row}\nmean rise {rise:.2f}", fontsize=9)
        axes.set_zlim(low, high)
        for name, label in (("x", "direction 1"), ("y", "direction 2"), ("z", "loss")):
            getattr(axes, f"set_{name}label")(label, fontsize=8, labelpad=-2)
        axes.tick_params(labelsize=7, pad=0)
    return figure
