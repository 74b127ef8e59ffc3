"""One client against a robust mean: the updates that the guard lets through, or could, do no harm by the rule alone."""

from __future__ import annotations

from bench.torture import Result
from bench.torture.updates import EVERY, NOT_STOPPED, STOPPED, attacked, heard, method_of
from fedtailor.methods import Method
from fedtailor.robust import robust_means

TAKEOVERS = {**NOT_STOPPED, "times 1e6": STOPPED["times 1e6"]}
RULES = sorted(robust_means.classes)


def run(share: float = 1.0) -> list[Result]:
    step = max(1, round(1 / share))
    some = [name for name in EVERY if _only_averages(method_of(name))][::step]
    with heard():
        return [
            Result.of(
                f"with robust={rule} and no guard, an update {what} costs the others nothing",
                (attacked(name, spoil, rule) for name in some),
            )
            for rule in RULES[::step]
            for what, spoil in TAKEOVERS.items()
        ]


def _only_averages(method: Method) -> bool:
    """Whether a robust mean covers all that the method sends."""
    return bool(method.up) and set(method.up) == set(method.averaged) and not method.individually
