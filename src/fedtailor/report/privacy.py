"""What a report says of runs with privacy: the rules in force, what a curious server can still learn, and what ε does not cover."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedtailor.analysis.results import Result
from fedtailor.methods import methods
from fedtailor.privacy.reveals import still_learnt
from fedtailor.privacy.rules import Privacy
from fedtailor.privacy.sample_dp import EPSILON
from fedtailor.report.sheets import Sheet

UNCOVERED = (
    "ε is what the whole run spends of differential privacy of clients. Scores, losses and everything else here are the researcher's own "
    "instruments, which it does not cover."
)


SAMPLES_UNCOVERED = (
    "ε of samples is the largest that a client has spent of the privacy of its own samples, for all that it has sent. It covers no scores, "
    "and no personal model that stays at a client."
)


def epsilon(result: Result, key: str = "epsilon") -> float:
    """Return the ε that a run has spent; NaN if it has no differential privacy."""
    spent = (r.get(key) for r in reversed(result.records))
    return next((float(value) for value in spent if value is not None), math.nan)


def sample_epsilon(result: Result) -> float:
    """Return the largest ε that a client has spent of its samples' privacy; NaN if they are not protected."""
    return epsilon(result, EPSILON)


def privacy_notes(results: Sequence[Result]) -> list[str]:
    notes = {UNCOVERED: epsilon, SAMPLES_UNCOVERED: sample_epsilon}
    return [note for note, spent in notes.items() if any(math.isfinite(spent(r)) for r in results)]


def privacy_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return the rules of the runs that have some: one row per method and entry."""
    rows: dict[tuple[str, str, str], str] = {}
    for result in results:
        privacy = Privacy.read(result.config.get("privacy"))
        method = methods.classes.get(result.method)
        if privacy is None or method is None or not privacy.rules:
            continue
        for name in method.up:
            if (rule := privacy.rules.get(name)) is None:  # protected by private steps alone
                continue
            rows[result.method, name, str(rule)] = still_learnt(name, rule)
    if not rows:
        return []
    header = ("method", "entry", "rule", "what a curious server can still learn")
    return [Sheet("Rules in force", header, [(*key, learnt) for key, learnt in rows.items()], left=4)]
