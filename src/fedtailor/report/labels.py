"""Who holds which labels, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedtailor.printable import drawable
from fedtailor.report.charts import Heat
from fedtailor.report.pictures import draw_heat, whole_numbers

INK = "#1f4e79"  # one dark blue, which prints as dark grey
BUBBLES = (50, 30)  # up to this many clients and classes, bubbles; beyond, a heat map
INCH = 0.27  # between neighbouring bubbles
LONGEST = 24  # characters of a name
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def label_figure(counts: np.ndarray, labels: Sequence[str] = (), names: Sequence[str] = ()) -> Figure:
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
    top.yaxis.set(major_locator=whole_numbers(3), major_formatter=THOUSANDS)
    top.tick_params(bottom=False, labelbottom=False, labelsize=8)
    if few:
        _draw_bubbles(main, side, counts, 66 * min(width / clients, height / classes, 0.4))
    else:
        draw_heat(main, Heat(np.where(counts.T > 0, counts.T, np.nan), [], "Samples", by_root=True), side)
        side.yaxis.set(major_locator=whole_numbers(5), major_formatter=THOUSANDS)
        side.tick_params(labelsize=8, length=2.5)
    margin = 0.6 if few else 0.5
    ends = {"xlim": (-margin, clients - 1 + margin), "ylim": (-margin, classes - 1 + margin)}
    main.set(xlabel="Client", ylabel="Class", **ends)
    main.xaxis.set_major_locator(whole_numbers(25))
    main.yaxis.set_major_locator(whole_numbers(BUBBLES[1] if few else 12))
    if len(labels) and classes <= BUBBLES[1]:
        main.set_yticks(np.arange(classes), [drawable(str(name)[:LONGEST]) for name in labels])
    if len(names) and clients <= BUBBLES[0]:
        main.set_xticks(np.arange(clients), [drawable(str(name)[:LONGEST]) for name in names], rotation=90)
    main.tick_params(labelsize=8, length=0)
    for axes in (top, main):
        axes.spines[:].set_visible(False)
    figure.suptitle("Training samples by client and class", fontsize=11)
    return figure


def _draw_bubbles(axes: Axes, side: Axes, counts: np.ndarray, diameter: float) -> None:
    """Bubbles, and beside them a scale of round counts; `diameter`, that of the largest, is in points."""
    client, label = np.nonzero(counts)
    area = diameter**2 / max(1, int(counts.max()))  # of one sample
    axes.set_axisbelow(True)
    axes.grid(color="#e3e7ec", linewidth=0.7)
    axes.scatter(client, label, s=area * counts[client, label], color=INK, linewidth=0)
    side.set_axis_off()
    scale = [round_count(counts.max(initial=1) * share) for share in (0.05, 0.2, 0.5, 1)]
    for count in dict.fromkeys(scale):
        side.scatter([], [], s=area * count, color=INK, linewidth=0, label=f"{count:,}")
    side.legend(
        title="Samples", loc="center", frameon=False, fontsize=8, title_fontsize=8, labelspacing=1, reverse=True
    )


def round_count(value: float) -> int:
    """Round down to one leading digit: 1,734 becomes 1,000, so that no bubble of the scale exceeds the largest drawn."""
    digit = 10 ** int(np.log10(max(value, 1)))
    return max(1, int(value // digit * digit))
