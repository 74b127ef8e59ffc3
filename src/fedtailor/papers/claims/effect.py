"""How far one arm is ahead of another, from runs with the same seeds, and what that says about a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedtailor.analysis.intervals import student

Verdict = Literal["holds", "does not", "open"]
ENOUGH = 5  # seeds for a verdict
MARGIN = 0.5  # points: a lead that is smaller would not decide for a method


@dataclass(frozen=True)
class Effect:
    """The lead in points with its interval; `better` and `worse` are shares of clients."""

    seeds: tuple[int, ...]
    leads: tuple[float, ...]  # one per seed
    lead: float
    low: float
    high: float
    better: float
    worse: float


def effect(pairs: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> Effect:
    """Return the lead of the first arm, given both arms' score of each client (0 to 1) by seed.

    Arms are paired by seed and client. Each seed deals the samples to new clients, who train together, so seeds are the independent units:
    Student's interval over their mean gaps is that of the mixed model with clients nested in seeds. Five are too few for a bootstrap.
    """
    gaps = {seed: 100 * (one - other) for seed, (one, other) in sorted(pairs.items())}
    known = {seed: gap[np.isfinite(gap)] for seed, gap in gaps.items()}
    known = {seed: gap for seed, gap in known.items() if len(gap)}
    leads = np.array([gap.mean() for gap in known.values()])
    low, high = interval(leads)
    clients = np.concatenate([*known.values(), []])
    shares = [float(np.mean(side)) if len(clients) else np.nan for side in (clients > 0, clients < 0)]
    return Effect(
        tuple(known), tuple(leads.tolist()), float(leads.mean()) if len(leads) else np.nan, low, high, *shares
    )


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean; unbounded if there are fewer than two values."""
    if len(values) < 2:
        return -np.inf, np.inf
    found = student(values)
    return float(found.low), float(found.high)


def verdict(
    found: Effect, published: float | None, gain: float, within: float | None = None, enough: int = ENOUGH
) -> tuple[Verdict, str]:
    """Return the verdict on "the arm is ahead" (or at most `within` points behind) and, if it is open, why.

    It holds if the whole interval is above 0, and does not if the whole interval is below the smallest lead that matters: half a point, or
    the published lead if that is smaller. With `within`, both bounds are −within. `gain` is what the lead gained over the last fifth of the
    rounds: training has converged as far as the claim is concerned if as much again would not change the verdict.
    """
    if len(found.seeds) < enough:
        return "open", f"{len(found.seeds)} of {enough} seeds"
    matters = min(MARGIN, published) if published is not None and published > 0 else MARGIN
    bounds = (0.0, matters) if within is None else (-within, -within)
    now, later = (_side(found.low + shift, found.high + shift, bounds) for shift in (0.0, gain))
    if now == "open":
        return "open", "too close to tell"
    return (now, "") if now == later else ("open", "not converged")


def _side(low: float, high: float, bounds: tuple[float, float]) -> Verdict:
    if low > bounds[0]:
        return "holds"
    return "does not" if high < bounds[1] else "open"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim of several comparisons: it holds if all do, and does not if one does not."""
    if "does not" in verdicts:
        return "does not"
    return "open" if "open" in verdicts else "holds"
