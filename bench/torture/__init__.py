"""Crash tests, fuzzing and attacks: check FedTailor's promises when something goes wrong or someone attacks.

    python -m bench.torture                                 # everything; about an hour on two cores
    python -m bench.torture configs files --share 0.1
    python -m bench.torture --json docs/results/torture.json       # parts that are not run keep their results in the file
    python -m bench.torture --table docs/results/torture.json      # print the file as a table, run nothing

Everything is bounded in time and stays on this machine: files in a temporary folder, the loopback network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """A promise, how often it was tried, and the failures."""

    promise: str
    tries: int
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, promise: str, outcomes: Iterable[str]) -> Result:
        """Collect one text per try: empty if the promise held, else what happened."""
        texts = list(outcomes)
        return cls(promise, len(texts), tuple(text for text in texts if text))


def table(results: Mapping[str, Sequence[Result]]) -> str:
    """Format tries and failures as a Markdown table, one line per promise."""
    lines = ["| part | promise | tries | failures |", "|---|---|---|---|"]
    lines += [f"| {part} | {r.promise} | {r.tries:,} | {len(r.failures)} |" for part, rs in results.items() for r in rs]
    return "\n".join(lines)


def read_results(text: str) -> dict[str, list[Result]]:
    return {part: [Result(**plain) for plain in results] for part, results in json.loads(text).items()}
