"""Whether a method's lead over another is more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedtailor.analysis.results import Result
from fedtailor.experiment.headline import Headline

TESTS = {
    "seeds": "paired t-test of the mean over clients, paired by seed (equal seeds deal the same samples to the same clients)",
    "clients": "Wilcoxon signed-rank test, paired over the clients of one seed: it tells whether these clients fare differently, "
    "not whether another seed would agree",
}


@dataclass(frozen=True)
class Verdict:
    """A two-sided p-value (after Holm's correction over all methods tested against a baseline), with the number and kind of pairs."""

    p: float
    n: int
    over: Literal["seeds", "clients"]

    def __str__(self) -> str:
        return ("p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}") + f" ({self.n} {self.over})"


def ranked(groups: Mapping[str, Sequence[Result]], metric: Headline) -> dict[str, list[Result]]:
    """Return the methods sorted from the best to the worst; those with unfinished runs, and those without a value, come last."""
    sign = 1 if metric.lower_is_better else -1

    def place(runs: Sequence[Result]) -> tuple[bool, float]:
        mean = sign * float(np.mean([metric.of(r.last, "mean") for r in runs]))
        return not all(r.finished for r in runs), mean if np.isfinite(mean) else np.inf

    return {name: list(groups[name]) for name in sorted(groups, key=lambda name: place(groups[name]))}


def choose_baseline(groups: Mapping[str, Sequence[Result]], metric: Headline, wanted: str = "") -> str:
    """Return the wanted method if it is there, else the best finished one; empty if no method is finished."""
    if wanted in groups:
        return wanted
    return next((name for name, runs in ranked(groups, metric).items() if all(r.finished for r in runs)), "")


def against(groups: Mapping[str, Sequence[Result]], baseline: str, metric: Headline) -> dict[str, Verdict]:
    """Test every method that can be paired with the baseline; only finished runs count."""
    base = groups.get(baseline, ())
    raw = {name: paired_test(runs, base, metric) for name, runs in groups.items() if name != baseline}
    return holm({name: verdict for name, verdict in raw.items() if verdict is not None})


def paired_test(one: Sequence[Result], other: Sequence[Result], metric: Headline) -> Verdict | None:
    """Test over the seeds that both have or, if that is one seed, over its clients; None if there is nothing to pair."""
    left, right = ({r.seed: r for r in runs if r.finished} for runs in (one, other))
    seeds = sorted(left.keys() & right.keys())
    if len(seeds) > 1:
        gaps = np.array([metric.of(left[s].last, "mean") - metric.of(right[s].last, "mean") for s in seeds])
        return Verdict(_t_test(gaps), len(seeds), "seeds") if np.isfinite(gaps).all() else None
    sides = [side[seed].clients(metric) for seed in seeds for side in (left, right)]
    if not sides or len(sides[0]) != len(sides[1]):
        return None
    gaps = sides[0] - sides[1]
    gaps = gaps[np.isfinite(gaps)]
    return Verdict(_signed_rank(gaps), len(gaps), "clients") if len(gaps) > 1 else None


def holm(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Apply Holm's correction: the smallest p times the number of tests, the next times one less, and never decreasing."""
    corrected, floor = {}, 0.0
    for rank, (name, verdict) in enumerate(sorted(verdicts.items(), key=lambda item: item[1].p)):
        floor = max(floor, min(1.0, verdict.p * (len(verdicts) - rank)))
        corrected[name] = replace(verdict, p=floor)
    return corrected


def _t_test(gaps: np.ndarray) -> float:
    from scipy import stats  # slow to import, and no other command needs it

    if np.ptp(gaps) == 0:  # no spread to measure the gap with
        return 1.0 if gaps[0] == 0 else 0.0
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def _signed_rank(gaps: np.ndarray) -> float:
    from scipy import stats

    return float(stats.wilcoxon(gaps).pvalue) if gaps.any() else 1.0
