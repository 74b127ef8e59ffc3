"""Who holds which labels, as one picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedtailor.printable import drawable

INK = "#1f4e79"  # one dark blue: it prints as a dark grey and needs no telling apart from other colours
PALE = "#e3e7ec"
# From a pale to a nearly black blue, evenly darker, so that the order is the same in grey.
SHADES = ((0.87, 0.92, 0.96), (0.62, 0.75, 0.87), (0.33, 0.53, 0.72), (0.12, 0.31, 0.47), (0.03, 0.09, 0.18))
BUBBLES = (50, 30)  # up to so many clients and classes, bubbles; beyond, a heat map
INCH = 0.27  # between two neighbours among the bubbles


def label_figure(counts: np.ndarray, labels: Sequence[str] = ()) -> Figure:
    """The counts (clients × classes) as bubbles whose area is the count, or as a heat map if they are many; on top the clients' sizes."""
    clients, classes = counts.shape
    as_bubbles = clients <= BUBBLES[0] and classes <= BUBBLES[1]
    width = np.clip(INCH * clients, 3.2, 9.0) if as_bubbles else 6.5
    height = np.clip(INCH * classes, 1.2, 8.0) if as_bubbles else np.clip(0.06 * classes, 2.4, 5.5)
    figure = Figure(figsize=(width + 1.9, height + 1.7), layout="constrained")
    FigureCanvasAgg(figure)  # a canvas of its own: nothing of pyplot's global state
    (top, corner), (main, side) = figure.subplots(
        2, 2, sharex="col", height_ratios=[0.75, height], width_ratios=[width, 0.75 if as_bubbles else 0.15]
    )
    corner.set_axis_off()
    _draw_sizes(top, counts.sum(axis=1), bar=0.6 if as_bubbles else 1.0)
    if as_bubbles:
        diameter = 66 * min(width / clients, height / classes, 0.4)
        _draw_bubbles(main, side, counts, diameter, height)
    else:
        _draw_heat(main, side, counts)
    margin = 0.6 if as_bubbles else 0.5
    main.set(
        xlabel="Client", ylabel="Class", xlim=(-margin, clients - 1 + margin), ylim=(-margin, classes - 1 + margin)
    )
    main.xaxis.set_major_locator(_whole(25))
    main.yaxis.set_major_locator(_whole(BUBBLES[1] if as_bubbles else 12))
    if labels and classes <= BUBBLES[1]:
        main.set_yticks(np.arange(classes), [drawable(str(name)[:24]) for name in labels])
    main.tick_params(labelsize=8)
    figure.suptitle("Training samples by client and class", fontsize=11)
    return figure


def _draw_sizes(axes: Axes, sizes: np.ndarray, bar: float) -> None:
    axes.bar(np.arange(len(sizes)), sizes, width=bar, color=INK, linewidth=0)
    axes.set_ylabel("Total", fontsize=9)
    axes.set_ylim(0, max(1, sizes.max()) * 1.05)
    axes.yaxis.set_major_locator(_whole(3))
    axes.yaxis.set_major_formatter(_thousands())
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.tick_params(axis="y", labelsize=8, length=2.5)
    _bare(axes)


def _draw_bubbles(axes: Axes, side: Axes, counts: np.ndarray, diameter: float, height: float) -> None:
    client, label = np.nonzero(counts)
    largest = max(1, int(counts.max()))
    area = diameter**2 / largest  # of one sample
    axes.set_axisbelow(True)
    axes.grid(color=PALE, linewidth=0.7)
    axes.scatter(client, label, s=area * counts[client, label], color=INK, linewidth=0)
    axes.tick_params(length=0)
    _bare(axes)
    scale = sorted({_round(largest * share) for share in (1, 0.5, 0.2, 0.05)})
    apart = max(diameter, 11) / 72 * 1.15
    at = height / 2 + apart * (np.arange(len(scale) + 1) - len(scale) / 2)  # in inches, from below
    side.set(xlim=(0, 1), ylim=(0, height))
    side.set_axis_off()
    side.scatter([0.25] * len(scale), at[:-1], s=area * np.array(scale), color=INK, linewidth=0, clip_on=False)
    for y, count in zip(at, scale, strict=False):
        side.text(0.55, y, f"{count:,}", fontsize=8, va="center")
    side.text(0.05, at[-1], "Samples", fontsize=9, va="center")


def _draw_heat(axes: Axes, side: Axes, counts: np.ndarray) -> None:
    norm = PowerNorm(
        0.5, vmin=0, vmax=max(1, int(counts.max()))
    )  # the root keeps small counts visible beside large ones
    image = axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        origin="lower",
        aspect="auto",
        cmap=ListedColormap(_shades()),
        norm=norm,
        interpolation="nearest",
        rasterized=True,
    )
    bar = axes.figure.colorbar(image, cax=side, label="Samples")
    side.yaxis.set_major_locator(_whole(5))
    side.yaxis.set_major_formatter(_thousands())
    side.tick_params(labelsize=8, length=2.5)
    bar.outline.set_visible(False)
    axes.tick_params(length=2.5)
    for edge in axes.spines.values():
        edge.set(color="#8a939d", linewidth=0.6)


def _shades() -> np.ndarray:
    stops = np.array(SHADES)
    at = np.linspace(0, 1, 256)
    return np.stack([np.interp(at, np.linspace(0, 1, len(stops)), stops[:, c]) for c in range(3)], axis=1)


def _round(value: float) -> int:
    """One leading digit: 1,734 becomes 1,000, so that no bubble of the scale is larger than any drawn."""
    digit = 10 ** int(np.log10(max(value, 1)))
    return max(1, int(value // digit * digit))


def _whole(most: int) -> MaxNLocator:
    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def _bare(axes: Axes) -> None:
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
