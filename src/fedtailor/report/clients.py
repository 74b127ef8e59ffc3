"""Each client under a method and under a baseline: who gains, who loses, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from fedtailor.analysis.groups import by_method
from fedtailor.analysis.intervals import Interval, student, wilson
from fedtailor.analysis.results import Result
from fedtailor.analysis.significance import ranked
from fedtailor.experiment.headline import Headline
from fedtailor.report.charts import UNKNOWN, Chart, Groups, by_client, curves, of_one_seed, save_picture, strips
from fedtailor.report.sheets import Sheet

LOCAL = "local"  # the baseline, if nothing else is asked for: what a client reaches alone
CALIBRATION = Headline("calibration_error")
OVER = {
    "samples": "In brackets: 95 % interval over the client's test samples (Wilson's; of a difference Newcombe's, unpaired, rather wide).",
    "seeds": "In brackets: 95 % interval over seeds (Student's t), since this metric's values of single test samples are not stored.",
    "": "No intervals: values of single test samples are not stored for this metric, or not yet, and there are no seeds to average.",
}


@dataclass(frozen=True)
class Clients:
    """The clients of a federation under a method, and under a baseline if there is one."""

    metric: Headline
    method: str
    runs: Sequence[Result]
    baseline: str = ""
    base: Sequence[Result] = ()

    @property
    def names(self) -> Sequence[str]:
        return self.runs[0].client_names

    @property
    def over(self) -> str:
        """What the intervals are over: test samples where a value is a share of right answers, else several seeds."""
        if self.metric.name == "accuracy" and np.isfinite(self.runs[0].samples("test")).any():
            return "samples"
        return "seeds" if min(len(side) for side in (self.runs, self.base or self.runs)) > 1 else ""

    @cached_property
    def own(self) -> Interval:
        return self._estimate(self.runs)

    @cached_property
    def alone(self) -> Interval | None:
        return self._estimate(self.base) if self.base else None

    @cached_property
    def difference(self) -> Interval | None:
        """The gain or loss of each client; seeds that both methods have are paired."""
        own, base = ({r.seed: r.clients(self.metric) for r in runs} for runs in (self.runs, self.base))
        if self.over == "seeds" and own.keys() == base.keys():
            return student(np.stack([own[seed] - base[seed] for seed in own]))
        return None if self.alone is None else self.own - self.alone

    def _estimate(self, runs: Sequence[Result]) -> Interval:
        values = np.stack([run.clients(self.metric) for run in runs])
        if self.over == "samples":
            mean = values.mean(axis=0)
            return Interval(mean, *wilson(mean, runs[0].samples("test")))
        found, ends = student(values), (0, 1) if self.metric.unit else (-np.inf, np.inf)  # of a share
        return Interval(found.values, np.clip(found.low, *ends), np.clip(found.high, *ends))

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
        metric, everyone = self.metric, range(len(self.names))
        columns = [("client", list(self.names))]  # not a dict: a user may call a method "test"
        for split in ("train", "test"):
            held = self.runs[0].samples(split)
            columns.append((split, [f"{count:,.0f}" if np.isfinite(count) else "—" for count in held]))
        for name, side in ((self.baseline, self.alone), (self.method, self.own)):
            columns += [(name, [_cell(side, i, metric) for i in everyone])] if side else []
        if gap := self.difference:
            columns.append(("difference", [_cell(gap, i, metric, "+") for i in everyone]))
        if errors := self.calibration:
            written = [" → ".join(CALIBRATION.written(e[i : i + 1]) for e in errors) for i in everyone]
            columns.append(("calib. error", written))
        title = f"Clients: {self.method}" + (f" against {self.baseline}" if gap else "")
        rows = [tuple(cells[i] for _, cells in columns) for i in self.order]
        return Sheet(
            title, [name for name, _ in columns], rows, [*filter(None, [self.verdict]), self._about(), OVER[self.over]]
        )

    @property
    def calibration(self) -> list[np.ndarray]:
        """The calibration errors under the baseline and the method; empty if they were not recorded, or are what is compared."""
        sides = [[r.clients(CALIBRATION) for r in runs] for runs in (self.base, self.runs) if runs]
        known = all(len(errors) == len(self.names) for side in sides for errors in side)
        return [np.mean(side, axis=0) for side in sides] if known and self.metric != CALIBRATION else []

    def _about(self) -> str:
        metric, seeds = self.metric, sorted({r.seed for r in self.runs})
        which = f"Mean of seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"Seed {seeds[0]}"
        percent, better = " in percent" if metric.unit else "", "lower" if metric.lower_is_better else "higher"
        sides = " → ".join(filter(None, [self.baseline, self.method]))
        calibrated = f" {CALIBRATION.heading} in percent: {sides}." if self.calibration else ""
        return f"{which}. Train, test: samples. {metric.heading}{percent}, {better} is better.{calibrated}"

    def chart(self) -> Chart:
        """Chart each client's gain or loss, or its value if there is no baseline; a band if there are many clients."""
        shown, metric, order = self.difference or self.own, self.metric, self.order
        values, low, high = (metric.scale * n[order] for n in (shown.values, shown.low, shown.high))
        what = f"{metric.title} of {self.method}" + (f" minus that of {self.baseline}" if self.alone else "")
        names = [self.names[i] for i in order]
        ends = (low, high) if np.isfinite(low + high).any() else UNKNOWN
        return by_client(metric.axis(what), self.method, names, values, ends, zero=self.alone is not None)


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
    base = (alone, usable[alone]) if alone in usable and others != [alone] else ()
    counts = {len(r.clients(metric)) for runs in usable.values() for r in runs}
    return [Clients(metric, name, usable[name], *(base if len(counts) == 1 else ())) for name in others]


def client_picture(results: Sequence[Result], path: Path) -> bool:
    """Draw who gains and who loses under the best method; return False, and draw nothing, without a baseline."""
    found = all_clients(by_method(results), results[0].metric)
    if not found or found[0].alone is None:
        return False
    save_picture([found[0].chart()], path, size=(7, 3), title=found[0].verdict)
    return True


def metric_picture(results: Sequence[Result], path: Path, metric: Headline | None = None) -> None:
    """Draw the mean over clients per round (left) and every client's own value (right), by name if there is one run."""
    metric = metric or results[0].metric
    groups, config = by_method(results), results[0].config
    data, partition, net = (config[part]["name"] for part in ("data", "partition", "net"))
    one = all_clients(groups, metric) if len(results) == 1 else []
    right = one[0].chart() if one else strips(groups, metric)
    title = f"{data}, {len(results[0].clients(metric))} clients, {partition} partition, net {net}"
    save_picture([curves(groups, metric), right], path, title=title)


def _cell(shown: Interval, client: int, metric: Headline, sign: Literal["", "+"] = "") -> str:
    value, low, high = (metric.scale * numbers[client] for numbers in (shown.values, shown.low, shown.high))
    if not np.isfinite(value):
        return "—"
    form, short = (".1f", ".0f" if high - low >= 10 else ".1f") if metric.unit else (".4g", ".3g")
    return f"{value:{sign}{form}}" + (f" [{low:{short}},{high:{short}}]" if np.isfinite(low + high) else "")


def _same_clients(runs: Sequence[Result]) -> bool:
    """Whether all runs have the same clients, whatever their seeds, so that they can be averaged."""
    fixed = all(r.config["partition"]["name"] == "natural" or "partition_seed" in r.config for r in runs)
    return fixed and len({tuple(r.client_names) for r in runs}) == 1
