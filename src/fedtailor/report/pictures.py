"""Accuracy per round and per client, drawn without touching matplotlib's global state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtailor.files import replacing
from fedtailor.printable import drawable
from fedtailor.report.groups import by_method
from fedtailor.report.results import Result

# Okabe and Ito's palette, distinct to the colour-blind; line styles carry the difference into grey prints.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*", "<", ">", "h")
FEW = 8  # methods whose legend fits into the picture
WIDEST = 26  # letters of a line of a method's name


def accuracy_picture(results: Sequence[Result], path: Path) -> None:
    """Left: the clients' mean accuracy over rounds, a band for the spread over seeds. Right: every client's own accuracy."""
    groups = {fill(drawable(name), WIDEST): runs for name, runs in by_method(results).items()}
    figure = Figure(figsize=(10.5, max(4.2, 2.4 + 0.24 * len(groups))), layout="constrained")
    rounds, clients = figure.subplots(1, 2, width_ratios=(1.15, 1))
    draw_curves(rounds, groups)
    _strips(clients, groups)
    if len(groups) > FEW:
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    else:
        rounds.legend(frameon=False, fontsize=9, loc="lower right")
    config = results[0].config
    data, partition, net = (config[part]["name"] for part in ("data", "partition", "net"))
    figure.suptitle(f"{data}, {len(results[0].clients)} clients, {partition} partition, net {net}", fontsize=11)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=130)


def draw_curves(axes: Axes, groups: dict[str, list[Result]]) -> None:
    """The clients' mean accuracy over rounds, a line for each group of runs and a band for its spread over seeds."""
    for (name, runs), (colour, style, marker) in zip(groups.items(), looks(), strict=False):
        steps = min((r.curve[0] for r in runs), key=len)
        values = runs[0].headline.scale * np.array([r.curve[1][: len(steps)] for r in runs])
        mean, spread = values.mean(0), values.std(0)
        every = max(1, len(steps) // 8)
        axes.plot(steps, mean, style, color=colour, lw=1.8, label=name, marker=marker, ms=4, markevery=every)
        if len(runs) > 1:
            axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)
    plain(axes, "round", f"mean {_title(groups)} of personal models")


def _strips(axes: Axes, groups: dict[str, list[Result]]) -> None:
    """One dot a client on its method's line, box and median behind; the dots' offsets go by rank, so the picture is the same every time."""
    for place, (runs, colour) in enumerate(zip(groups.values(), cycle(COLOURS), strict=False)):
        values = runs[0].headline.scale * np.sort(np.concatenate([r.clients for r in runs]))
        values = values[np.isfinite(values)]
        offsets = 0.28 * np.sin(2.4 * np.arange(len(values)))
        axes.scatter(values, place + offsets, s=14, color=colour, alpha=0.6, lw=0, zorder=2)
        axes.boxplot(
            [values],
            positions=[place],
            widths=0.7,
            orientation="horizontal",
            showfliers=False,
            medianprops={"color": "black"},
            boxprops={"color": "#888888"},
        )
    axes.set_yticks(range(len(groups)), list(groups))
    for label in axes.get_yticklabels():
        label.set_fontsize(9 if "\n" not in label.get_text() else 6)  # several lines in the room of one method
    axes.invert_yaxis()
    plain(axes, f"{_title(groups)} of each client", "", grid="x")


def _title(groups: dict[str, list[Result]]) -> str:
    return next(iter(groups.values()))[0].headline.title


def looks() -> Iterator[tuple[str, str, str]]:
    """Colour, line style and marker, no two alike for a while: told apart in grey and by the colour-blind."""
    return zip(cycle(COLOURS), cycle(STYLES), cycle(MARKERS), strict=False)


def plain(axes: Axes, x: str, y: str, grid: Literal["x", "y"] = "y") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis=grid, color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
