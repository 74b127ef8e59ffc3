"""Each client under a method and under a baseline: who gains, who loses, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedtailor.experiment.headline import Headline
from fedtailor.report.charts import Chart, Curve, Groups, Points, curves, of_one_seed, strips
from fedtailor.report.charts import MOST_NAMES as FEW
from fedtailor.report.groups import by_method
from fedtailor.report.pictures import panels, save
from fedtailor.report.results import Result
from fedtailor.report.sheets import Sheet
from fedtailor.report.significance import ranked

LOCAL = "local"  # the baseline, if nothing else is asked for: what a client reaches alone
CALIBRATION = Headline("calibration_error")
NORMAL = 1.959964  # 97.5 % quantile
OVER = {
    "samples": "In brackets: 95 % interval over the client's test samples (Wilson's; of a difference Newcombe's, unpaired, so rather wide).",
    "seeds": "In brackets: 95 % interval over seeds (Student's t), since this metric's values of single test samples are not stored.",
    "": "No intervals: values of single test samples are not stored for this metric, or not yet, and there are no seeds to average.",
}


@dataclass(frozen=True)
class Estimate:
    """A value per client with its 95 % interval, NaN where there is none."""

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference; its interval is that of two independent estimates (Newcombe)."""
        gap = self.values - other.values
        below = np.hypot(self.values - self.low, other.high - other.values)
        above = np.hypot(self.high - self.values, other.values - other.low)
        return Estimate(gap, gap - below, gap + above)

    def cell(self, client: int, metric: Headline, sign: Literal["", "+"] = "") -> str:
        value, low, high = (metric.scale * numbers[client] for numbers in (self.values, self.low, self.high))
        if not np.isfinite(value):
            return "—"
        form, short = (".1f", ".0f") if metric.unit else (".4g", ".3g")
        return f"{value:{sign}{form}}" + (f" [{low:{short}},{high:{short}}]" if np.isfinite(low + high) else "")


@dataclass(frozen=True)
class Clients:
    """The clients of a federation under a method, and under a baseline if there is one."""

    metric: Headline
    method: str
    baseline: str
    seeds: Sequence[int]
    names: Sequence[str]
    train: np.ndarray
    test: np.ndarray
    own: Estimate
    alone: Estimate | None
    calibration: dict[str, np.ndarray]  # by method
    over: str  # what the intervals are over

    @property
    def difference(self) -> Estimate | None:
        return None if self.alone is None else self.own - self.alone

    @property
    def order(self) -> np.ndarray:
        """The clients from the largest gain to the largest loss or, without a baseline, from best to worst."""
        values = (self.difference or self.own).values
        return np.argsort(values if self.metric.lower_is_better else -values, kind="stable")

    @property
    def verdict(self) -> str:
        """How many clients gain and lose, and how many of them by more than chance."""
        if self.difference is None:
            return ""
        sign = -1 if self.metric.lower_is_better else 1
        gap, ends = sign * self.difference.values, sign * np.stack([self.difference.low, self.difference.high])
        words = f"With {self.method}, {(gap > 0).sum()} of {len(gap)} clients gain over {self.baseline} and {(gap < 0).sum()} lose"
        sure = f"; {(ends > 0).all(0).sum()} gain and {(ends < 0).all(0).sum()} lose by more than chance"
        return words + (sure if self.over else "") + "."

    def sheet(self) -> Sheet:
        """One row per client: its samples, the metric alone and federated, the difference, and calibration if it was recorded."""
        metric, gap = self.metric, self.difference
        sides = {self.baseline: self.alone, self.method: self.own}
        shown = {name: estimate for name, estimate in sides.items() if estimate is not None}
        header = ["client", "train", "test", *shown, *(["difference"] if gap else [])]
        header += [CALIBRATION.title] if self.calibration else []
        rows = []
        for i in self.order:
            held = [f"{n[i]:,.0f}" if np.isfinite(n[i]) else "—" for n in (self.train, self.test)]
            values = [estimate.cell(i, metric) for estimate in shown.values()]
            values += [gap.cell(i, metric, "+")] if gap else []
            errors = " → ".join(CALIBRATION.written(errors[i : i + 1]) for errors in self.calibration.values())
            rows.append((self.names[i], *held, *values, *([errors] if errors else [])))
        percent, better = " in percent" if metric.unit else "", "lower" if metric.lower_is_better else "higher"
        which = f"Seed {self.seeds[0]}" if len(self.seeds) == 1 else f"Mean of seeds {', '.join(map(str, self.seeds))}"
        about = f"{which}. Train, test: samples. {metric.heading}{percent}, {better} is better."
        title = f"Clients: {self.method}" + (f" against {self.baseline}" if gap else "")
        return Sheet(title, header, rows, [*filter(None, [self.verdict]), about, OVER[self.over]])

    def chart(self) -> Chart:
        """Chart each client's gain or loss, or its value if there is no baseline; a band if there are many clients."""
        shown, metric, order = self.difference or self.own, self.metric, self.order
        values, low, high = (metric.scale * n[order] for n in (shown.values, shown.low, shown.high))
        what = f"{metric.title} of {self.method}" + (f" minus that of {self.baseline}" if self.alone else "")
        places, bounds = np.arange(len(order)), (low, high) if np.isfinite(low + high).any() else (None, None)
        if len(order) > FEW:
            zero = [Curve("", places, 0.0 * places, thin=True)] if self.alone else []
            return Chart("clients, sorted", metric.axis(what), [Curve(self.method, places, values, *bounds), *zero])
        names = [self.names[i] for i in order]
        zero = [Curve("", np.zeros(2), np.array([-0.5, len(order) - 0.5]), thin=True)] if self.alone else []
        return Chart(metric.axis(what), "", [Points("", values, places, names, *bounds), *zero], names)


def all_clients(groups: Groups, metric: Headline, baseline: str = "") -> list[Clients]:
    """Compare the clients under each method, the best first, with those under the baseline (by default `local`)."""
    usable: dict[str, Sequence[Result]] = {}
    alone = ""
    for name, runs in groups.items():
        if all(np.isfinite(r.clients(metric)).any() for r in runs):
            label = name if all(r.finished for r in runs) else f"{name} (unfinished)"
            usable[label] = runs
            alone = label if name == baseline or (not baseline and runs[0].method == LOCAL) else alone
    if usable and not _same_clients([r for runs in usable.values() for r in runs]):
        usable = {name: [run] for name, run in of_one_seed(usable)[0].items()}
    others = [name for name in ranked(usable, metric) if name != alone] or list(usable)
    return [_clients(usable, name, alone if alone in usable and name != alone else "", metric) for name in others]


def client_picture(results: Sequence[Result], path: Path) -> bool:
    """Draw who gains and who loses under the best method; return False, and draw nothing, without a baseline."""
    found = all_clients(by_method(results), results[0].metric)
    if not found or found[0].alone is None:
        return False
    save(panels([found[0].chart()], size=(7, 3), title=found[0].verdict), path)
    return True


def metric_picture(results: Sequence[Result], path: Path, metric: Headline | None = None) -> None:
    """Draw the mean over clients per round (left) and every client's own value (right), by name if there is one run."""
    metric = metric or results[0].metric
    groups, config = by_method(results), results[0].config
    data, partition, net = (config[part]["name"] for part in ("data", "partition", "net"))
    one = all_clients(groups, metric) if len(results) == 1 else []
    right = one[0].chart() if one else strips(groups, metric)
    title = f"{data}, {len(results[0].clients(metric))} clients, {partition} partition, net {net}"
    save(panels([curves(groups, metric), right], title=title), path)


def _clients(groups: Groups, method: str, baseline: str, metric: Headline) -> Clients:
    sides = {name: groups[name] for name in (baseline, method) if name}
    first = groups[method][0]
    count = len(first.clients(metric))
    sides = {name: runs for name, runs in sides.items() if all(len(r.clients(metric)) == count for r in runs)}
    estimates = {name: _estimate(runs, metric) for name, runs in sides.items()}
    errors = {name: np.array([r.clients(CALIBRATION) for r in runs]) for name, runs in sides.items()}
    several = min(len(runs) for runs in sides.values()) > 1
    return Clients(
        metric,
        method,
        baseline if baseline in sides else "",
        sorted({r.seed for r in groups[method]}),
        first.client_names,
        first.samples("train"),
        first.samples("test"),
        estimates[method],
        estimates.get(baseline),
        {name: e.mean(axis=0) for name, e in errors.items() if metric != CALIBRATION and e.shape[1] == count},
        "samples" if _by_sample(first, metric) else "seeds" if several else "",
    )


def _estimate(runs: Sequence[Result], metric: Headline) -> Estimate:
    """Return the mean over runs with its interval: over test samples for accuracy, else over several runs."""
    values = np.stack([run.clients(metric) for run in runs])
    mean = values.mean(axis=0)
    if _by_sample(runs[0], metric):
        return Estimate(mean, *wilson(mean, runs[0].samples("test")))
    if len(runs) == 1:
        return Estimate(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    from scipy import stats  # slow to import

    reach = stats.t.ppf(0.975, len(runs) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(runs))
    return Estimate(mean, mean - reach, mean + reach)


def wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's 95 % interval of shares of so many samples; unlike the bootstrap's, it has a width even at 0 and 1."""
    share, count = np.clip(share, 0, 1), np.where(count > 0, count, np.nan)
    middle = (share + NORMAL**2 / (2 * count)) / (1 + NORMAL**2 / count)
    reach = NORMAL / (1 + NORMAL**2 / count) * np.sqrt(share * (1 - share) / count + (NORMAL / (2 * count)) ** 2)
    return np.minimum(middle - reach, share), np.maximum(middle + reach, share)  # at 0 and 1, rounding crosses them


def _by_sample(run: Result, metric: Headline) -> bool:
    """Whether each test sample's outcome follows from the value: a share of right answers among known numbers of samples."""
    return metric.name == "accuracy" and bool(np.isfinite(run.samples("test")).any())


def _same_clients(runs: Sequence[Result]) -> bool:
    """Whether all runs have the same clients, whatever their seeds, so that they can be averaged."""
    fixed = all(r.config["partition"]["name"] == "natural" or "partition_seed" in r.config for r in runs)
    return fixed and len({tuple(r.client_names) for r in runs}) == 1
