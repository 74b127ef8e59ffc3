"""What a report says about private runs: the rules in force, what a curious server can still learn, and what ε does not cover."""

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
    rows: dict[tuple[str, ...], str] = {}
    for result in results:
        privacy, method = Privacy.read(result.config.get("privacy")), methods.classes.get(result.method)
        rules = privacy.rules if privacy and method else {}  # what private steps alone protect has none
        names = [name for name in method.up if name in rules] if method else []
        rows |= {(result.method, name, str(rules[name])): still_learnt(name, rules[name]) for name in names}
    header = ("method", "entry", "rule", "what a curious server can still learn")
    found = Sheet("Rules in force", header, [(*key, learnt) for key, learnt in rows.items()], left=4)
    return [found] if rows else []
