"""What a chart shows, as plain arrays; `pictures` draws it with matplotlib, `interactive` with plotly.js."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedtailor.analysis.results import Result
from fedtailor.experiment.headline import Headline
from fedtailor.extras import extra

# Okabe and Ito's palette, distinct to the colour-blind; line styles carry the difference into grey prints.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dashed", "dashdot", "dotted")
# From a pale to a nearly black blue, evenly darker, so that the order is the same in grey.
SHADES = ((0.87, 0.92, 0.96), (0.62, 0.75, 0.87), (0.33, 0.53, 0.72), (0.12, 0.31, 0.47), (0.03, 0.09, 0.18))
MOST_COLUMNS = 1000  # of a heat map; with more clients, an even selection is shown
MOST_NAMES = 40  # beside an axis
WIDEST = 24  # characters of a shortened name

Groups = Mapping[str, Sequence[Result]]
Ends = tuple[np.ndarray | None, np.ndarray | None]  # of intervals
UNKNOWN: Ends = (None, None)
Kind = Literal["line", "guide", "dots", "hollow", "box", "bars"]


@dataclass(frozen=True)
class Series:
    """Points that belong together; `low` and `high` are the ends of a line's band, or of each point's interval.

    A guide is a thin line in the background. A box is drawn over the x of its points, which all have one y. `labels` name the points.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    kind: Kind = "line"
    labels: Sequence[str] = ()
    steps: bool = False  # a line holds its value until the next point

    def __getitem__(self, some: np.ndarray) -> Series:
        """Return some of the points."""
        low, high = (None if ends is None else ends[some] for ends in (self.low, self.high))
        return replace(self, x=self.x[some], y=self.y[some], low=low, high=high)


@dataclass(frozen=True)
class Heat:
    """A value per row and column, NaN where there is none; `columns` are their names."""

    values: np.ndarray
    unit: str
    columns: Sequence[str] = ()
    by_root: bool = False  # shade by the square root, which keeps small values visible


@dataclass(frozen=True)
class Chart:
    """Series, or a heat map, on one pair of axes; `names` label the x axis, or the rows of dots, boxes and heat maps from the top."""

    x: str
    y: str
    series: Sequence[Series] = ()
    names: Sequence[str] = ()
    title: str = ""
    log: bool = False  # of the x axis
    heat: Heat | None = None

    @property
    def in_rows(self) -> bool:
        kinds = {one.kind for one in self.series}
        return bool(self.names) and (self.heat is not None or bool(kinds & {"dots", "box"}))


def looks() -> Iterator[tuple[str, str]]:
    """Yield pairs of colour and line style that repeat only after all combinations."""
    return zip(cycle(COLOURS), cycle(DASHES), strict=False)


def shortened(name: str) -> str:
    """Shorten a long name in the middle: variants of a method begin alike and differ at the end."""
    half = WIDEST // 2
    return name if len(name) <= WIDEST else f"{name[: half - 1]}…{name[-half:]}"


def curves(groups: Groups, metric: Headline, title: str = "") -> Chart:
    """Chart the mean over clients per round: one line per method, with a band of ± one deviation over the runs that reached it."""
    lines = []
    for name, runs in groups.items():
        own = [run.curve(metric) for run in runs]
        rounds = np.unique(np.concatenate([np.array(x, dtype=int) for x, _ in own]))
        values = np.full((len(runs), len(rounds)), np.nan)
        for row, (x, y) in zip(values, own, strict=True):
            row[np.searchsorted(rounds, x)] = metric.scale * np.array(y, dtype=float)
        mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        ends = (mean - std, mean + std) if std.any() else UNKNOWN
        lines.append(Series(name, rounds, mean, *ends))
    return Chart("round", metric.axis(f"mean {metric.title} of personal models"), lines, title=title)


def strips(groups: Groups, metric: Headline) -> Chart:
    """Chart the last value of every client, pooling the clients of all runs of a method."""
    boxes = []
    for place, (name, runs) in enumerate(groups.items()):
        values = metric.scale * np.concatenate([run.clients(metric) for run in runs])
        who = np.array([f"{client}, seed {run.seed}" for run in runs for client in run.client_names], dtype=object)
        x, known = values[np.isfinite(values)], np.flatnonzero(np.isfinite(values))
        boxes.append(Series(name, x, np.array([place]), kind="box", labels=who[known].tolist()))
    return Chart(metric.axis(f"{metric.title} of each client"), "", boxes, list(groups))


def label_chart(counts: np.ndarray, labels: Sequence[str], clients: Sequence[str]) -> Chart:
    """Chart the training samples of each class (rows) per client (columns, with their sums); cells without samples stay blank."""
    shown = range(0, len(counts), max(1, -(-len(counts) // MOST_COLUMNS)))
    columns = [f"{shortened(clients[i])} ({counts[i].sum():,})" for i in shown]
    held = counts[shown].T.astype(float)
    heat = Heat(np.where(held > 0, held, np.nan), "samples", columns, by_root=True)
    named = " (its training samples)" if len(shown) <= MOST_NAMES else ""
    return Chart(f"client{named}", "class", names=labels, heat=heat)


def forest(title: str, names: Sequence[str], values: np.ndarray, ends: Ends = UNKNOWN, *, zero: bool = False) -> Chart:
    """Chart one value per name, with intervals if their ends are given, and a line at zero if asked for."""
    dots = Series("", values, np.arange(len(values)), *ends, "dots", names)
    line = Series("", np.zeros(2), np.array([-0.5, len(values) - 0.5]), kind="guide")
    return Chart(title, "", [dots, line] if zero else [dots], names)


def by_client(
    title: str, method: str, names: Sequence[str], values: np.ndarray, ends: Ends = UNKNOWN, *, zero: bool = False
) -> Chart:
    """Chart one value per client in this order: as a forest, or as a curve if they are many."""
    if len(values) <= MOST_NAMES:
        return forest(title, names, values, ends, zero=zero)
    places = np.arange(len(values))
    line = Series("", places, 0.0 * places, kind="guide")
    return Chart("client by rank", title, [Series(method, places, values, *ends), *([line] if zero else [])])


def tradeoff(groups: Groups, metric: Headline, title: str, costs: Sequence[np.ndarray]) -> Chart:
    """Chart the metric against a cost; filled dots, joined by a line, are on the Pareto front."""
    x = np.array([cost.mean() for cost in costs])
    y = np.array([metric.scale * np.mean([metric.of(r.last, "mean") for r in runs]) for runs in groups.values()])
    front = pareto_front(x, -y if metric.lower_is_better else y)
    dots = [
        Series(name, x[k : k + 1], y[k : k + 1], kind="dots" if k in front else "hollow", labels=[name])
        for k, name in enumerate(groups)
    ]
    line = Series("", x[front], y[front], kind="guide", steps=True)
    return Chart(title, metric.axis(f"mean {metric.title}"), [*dots, line])


def pareto_front(cost: np.ndarray, gain: np.ndarray) -> list[int]:
    """Return the positions, by rising cost, of the points that no other beats at the same or a lower cost."""
    kept: list[int] = []
    for k in sorted(range(len(cost)), key=lambda k: (cost[k], -gain[k])):
        if not kept or gain[k] > gain[kept[-1]]:
            kept.append(k)
    return kept


def of_one_seed(groups: Groups) -> tuple[dict[str, Result], int]:
    """Return the runs of the seed that most methods have, and the seed: clients differ between seeds."""
    seed = Counter(s for runs in groups.values() for s in {r.seed for r in runs}).most_common(1)[0][0]
    return {name: r for name, runs in groups.items() for r in runs if r.seed == seed}, seed


def save_picture(charts: Sequence[Chart], path: Path, **layout: Any) -> None:
    """Draw charts side by side into a file; `layout` is that of `pictures.panels`."""
    with extra("report", "A picture"):
        from fedtailor.report.pictures import panels, save
    save(panels(charts, **layout), path)
