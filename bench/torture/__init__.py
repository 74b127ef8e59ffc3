"""Crash tests, fuzzing and attacks: whether FedTailor keeps its promises when something goes wrong or someone means harm.

    python -m bench.torture                          # everything; about an hour on two cores
    python -m bench.torture configs files --share 0.1
    python -m bench.torture --json torture.json

Everything is bounded in time and stays on this machine: files in a temporary folder, the loopback network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """What was tried how often against which promise, and how it was broken."""

    promise: str
    tries: int
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, promise: str, outcomes: Iterable[str]) -> Result:
        """From one text per try: empty where the promise held, else what happened."""
        texts = list(outcomes)
        return cls(promise, len(texts), tuple(text for text in texts if text))
