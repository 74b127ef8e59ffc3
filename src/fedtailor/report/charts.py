"""What a chart shows, as plain arrays; `pictures` draws it with matplotlib, `interactive` with plotly.js."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.experiment.headline import Headline
from fedtailor.extras import extra
from fedtailor.report.results import Labels, Result

# Okabe and Ito's palette, distinct to the colour-blind; line styles carry the difference into grey prints.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dashed", "dashdot", "dotted")
# From a pale to a nearly black blue, evenly darker, so that the order is the same in grey.
SHADES = ((0.87, 0.92, 0.96), (0.62, 0.75, 0.87), (0.33, 0.53, 0.72), (0.12, 0.31, 0.47), (0.03, 0.09, 0.18))
MOST_COLUMNS = 1000  # of a heat map; with more clients, an even selection is shown
MOST_NAMES = 40  # beside an axis

Groups = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class Curve:
    """A line, with a band from `low` to `high` if it stands for several runs or clients."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    steps: bool = False  # holds its value until the next point
    thin: bool = False  # one of many, in the background


@dataclass(frozen=True)
class Strip:
    """One value per client, with the clients' names."""

    name: str
    values: np.ndarray
    who: Sequence[str]


@dataclass(frozen=True)
class Heat:
    """A value per row and column, NaN where there is none; `names` are those of the columns."""

    values: np.ndarray
    names: Sequence[str]
    unit: str
    by_root: bool = False  # shade by the square root, which keeps small values visible


@dataclass(frozen=True)
class Points:
    """A dot per name, with a line from `low` to `high`: along x if y is a place in a list of names, else along y."""

    name: str
    x: np.ndarray
    y: np.ndarray
    names: Sequence[str]
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Bars:
    """A bar per place on the x axis; several stand side by side."""

    name: str
    heights: np.ndarray
    std: np.ndarray | None = None


Mark = Curve | Strip | Heat | Points | Bars


@dataclass(frozen=True)
class Chart:
    """Marks on one pair of axes; `names` label the places on the y axis, from the top, or on the x axis under curves and bars."""

    x: str
    y: str
    marks: Sequence[Mark]
    names: Sequence[str] = ()
    title: str = ""
    log: bool = False  # of the x axis


def looks() -> Iterator[tuple[str, str]]:
    """Yield pairs of colour and line style that repeat only after all combinations."""
    return zip(cycle(COLOURS), cycle(DASHES), strict=False)


def curves(groups: Groups, metric: Headline, title: str = "") -> Chart:
    """Chart the mean over clients per round: one line per method, with a band of ± one standard deviation over its runs."""
    marks = [over_runs(name, runs, metric) for name, runs in groups.items()]
    return Chart("round", metric.axis(f"mean {metric.title} of personal models"), marks, title=title)


def over_runs(name: str, runs: Sequence[Result], metric: Headline) -> Curve:
    """Return the curve of mean and standard deviation over the runs that reached each round."""
    own = [run.curve(metric) for run in runs]
    steps = np.unique(np.concatenate([np.array(x, dtype=int) for x, _ in own]))
    values = np.full((len(runs), len(steps)), np.nan)
    for row, (x, y) in zip(values, own, strict=True):
        row[np.searchsorted(steps, x)] = metric.scale * np.array(y, dtype=float)
    mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    return Curve(name, steps, mean, mean - std, mean + std) if std.any() else Curve(name, steps, mean)


def strips(groups: Groups, metric: Headline) -> Chart:
    """Chart the last value of every client, pooling the clients of all runs of a method."""
    marks = []
    for name, runs in groups.items():
        values = metric.scale * np.concatenate([run.clients(metric) for run in runs])
        who = [f"{client}, seed {run.seed}" for run in runs for client in run.client_names]
        known = np.isfinite(values)
        marks.append(Strip(name, values[known], [w for w, k in zip(who, known, strict=False) if k]))
    return Chart(metric.axis(f"{metric.title} of each client"), "", marks, list(groups))


def label_heat(labels: Labels) -> Chart:
    """Chart the training samples of each class (rows) per client (columns); cells without samples stay blank."""
    shown = np.arange(0, len(labels.counts), max(1, -(-len(labels.counts) // MOST_COLUMNS)))
    counts = labels.counts[shown].T.astype(float)
    counts[counts == 0] = np.nan
    heat = Heat(counts, [labels.clients[i] for i in shown.tolist()], "samples", by_root=True)
    return Chart("client", "class", [heat], labels.labels)


def dots(groups: Groups, metric: Headline, title: str, values: Sequence[np.ndarray]) -> Chart:
    """Chart one number per method: its mean and standard deviation over runs."""
    mean, std = (np.array([metric.scale * f(v) for v in values]) for f in (np.mean, np.std))
    points = Points("", mean, np.arange(len(mean)), list(groups), mean - std, mean + std)
    return Chart(title, "", [points], list(groups))


def tradeoff(groups: Groups, metric: Headline, title: str, costs: Sequence[np.ndarray]) -> Chart:
    """Chart the metric against a cost; filled dots, joined by a line, are on the Pareto front."""
    x = np.array([cost.mean() for cost in costs])
    y = np.array([metric.scale * np.mean([metric.of(r.last, "mean") for r in runs]) for runs in groups.values()])
    front = pareto_front(x, -y if metric.lower_is_better else y)
    methods = [Points(name, x[k : k + 1], y[k : k + 1], [name], hollow=k not in front) for k, name in enumerate(groups)]
    line = Curve("", x[front], y[front], steps=True, thin=True)
    return Chart(title, metric.axis(f"mean {metric.title}"), [*methods, line])


def by_client(
    title: str,
    method: str,
    names: Sequence[str],
    values: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray] | tuple[None, None] = (None, None),
    *,
    gain: bool,
) -> Chart:
    """Chart one value per client in this order, with intervals if their ends are given and a line at zero if it is a gain.

    Many clients become a curve.
    """
    places = np.arange(len(values))
    if len(values) > MOST_NAMES:
        zero = [Curve("", places, 0.0 * places, thin=True)] if gain else []
        return Chart("client by rank", title, [Curve(method, places, values, *ends), *zero])
    zero = [Curve("", np.zeros(2), np.array([-0.5, len(values) - 0.5]), thin=True)] if gain else []
    return Chart(title, "", [Points("", values, places, names, *ends), *zero], names)


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
