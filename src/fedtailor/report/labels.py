"""Who holds which labels, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedtailor.printable import drawable
from fedtailor.report.charts import Heat
from fedtailor.report.pictures import draw_heat

INK = "#1f4e79"  # one dark blue, which prints as dark grey
BUBBLES = (50, 30)  # up to this many clients and classes, bubbles; beyond, a heat map
INCH = 0.27  # between neighbouring bubbles
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def label_figure(counts: np.ndarray, labels: Sequence[str] = ()) -> Figure:
    """Draw the counts (clients × classes) as bubbles whose area is the count, or as a heat map if many; clients' sizes on top."""
    clients, classes = counts.shape
    few = clients <= BUBBLES[0] and classes <= BUBBLES[1]
    width = np.clip(INCH * clients, 3.2, 9.0) if few else 6.5
    height = np.clip(INCH * classes, 1.2, 8.0) if few else np.clip(0.06 * classes, 2.4, 5.5)
    figure = Figure(figsize=(width + 1.9, height + 1.7), layout="constrained")
    FigureCanvasAgg(figure)
    ratios: dict[str, Any] = {"height_ratios": [0.75, height], "width_ratios": [width, 0.75 if few else 0.15]}
    (top, corner), (main, side) = figure.subplots(2, 2, sharex="col", **ratios)
    corner.set_axis_off()
    top.bar(np.arange(clients), counts.sum(axis=1), width=0.6 if few else 1.0, color=INK, linewidth=0)
    top.set_ylabel("Total", fontsize=9)
    top.yaxis.set(major_locator=_whole(3), major_formatter=THOUSANDS)
    top.tick_params(bottom=False, labelbottom=False, labelsize=8)
    if few:
        diameter = 66 * min(width / clients, height / classes, 0.4)
        _draw_bubbles(main, side, counts, diameter, height)
    else:
        _draw_heat(main, side, counts)
    margin = 0.6 if few else 0.5
    main.set(
        xlabel="Client", ylabel="Class", xlim=(-margin, clients - 1 + margin), ylim=(-margin, classes - 1 + margin)
    )
    main.xaxis.set_major_locator(_whole(25))
    main.yaxis.set_major_locator(_whole(BUBBLES[1] if few else 12))
    if labels and classes <= BUBBLES[1]:
        main.set_yticks(np.arange(classes), [drawable(str(name)[:24]) for name in labels])
    main.tick_params(labelsize=8, length=0)
    for axes in (top, main):
        axes.spines[:].set_visible(False)
    figure.suptitle("Training samples by client and class", fontsize=11)
    return figure


def _draw_bubbles(axes: Axes, side: Axes, counts: np.ndarray, diameter: float, height: float) -> None:
    """Bubbles, and beside them a scale of round counts; `height` is in inches, `diameter` in points."""
    client, label = np.nonzero(counts)
    largest = max(1, int(counts.max()))
    area = diameter**2 / largest  # area of one sample
    axes.set_axisbelow(True)
    axes.grid(color="#e3e7ec", linewidth=0.7)
    axes.scatter(client, label, s=area * counts[client, label], color=INK, linewidth=0)
    scale = sorted({_round(largest * share) for share in (1, 0.5, 0.2, 0.05)})
    at = height / 2 + max(diameter, 11) / 72 * 1.15 * (np.arange(len(scale) + 1) - len(scale) / 2)
    side.set(xlim=(0, 1), ylim=(0, height))
    side.set_axis_off()
    side.scatter([0.25] * len(scale), at[:-1], s=area * np.array(scale), color=INK, linewidth=0, clip_on=False)
    for y, text in zip(at, [*(f"{count:,}" for count in scale), "Samples"], strict=True):
        side.text(0.05 if text == "Samples" else 0.55, y, text, fontsize=8, va="center")


def _draw_heat(axes: Axes, side: Axes, counts: np.ndarray) -> None:
    values = np.where(counts.T > 0, counts.T, np.nan)
    draw_heat(axes, Heat(values, np.arange(len(counts)), [], [], "Samples", by_root=True), side)
    side.yaxis.set(major_locator=_whole(5), major_formatter=THOUSANDS)
    side.tick_params(labelsize=8, length=2.5)


def _round(value: float) -> int:
    """Round down to one leading digit: 1,734 becomes 1,000, so that no bubble of the scale exceeds the largest drawn."""
    digit = 10 ** int(np.log10(max(value, 1)))
    return max(1, int(value // digit * digit))


def _whole(most: int) -> MaxNLocator:
    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
