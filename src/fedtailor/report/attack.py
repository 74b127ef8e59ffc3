"""What a table says about runs in which some clients attack: who is counted, and how often a backdoor works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.analysis.results import Result

SUCCESS = "backdoor_success"


def attack_notes(results: Sequence[Result]) -> list[str]:
    """Return a sentence for each attack among these runs: its options, and that attackers are not in the numbers."""
    return list(dict.fromkeys(_note(r) for r in results if "attack" in r.config and r.evaluated))


def backdoor_success(result: Result) -> float:
    """Return the success rate of a backdoor at the last evaluation; NaN if there is none."""
    value = result.last.get(SUCCESS)
    return float(value) if isinstance(value, int | float) else float("nan")


def _note(result: Result) -> str:
    count, total = result.last.get("attackers"), len(result.clients())
    robust = f" Robust mean: {_words(result.config['robust'])}." if "robust" in result.config else ""
    return f"{count} of {total} clients attack ({_words(result.config['attack'])}): all numbers are those of the others.{robust}"


def _words(part: Mapping[str, Any]) -> str:
    """Return a part of a config with its options, as they are typed."""
    options = ", ".join(f"{key}={value}" for key, value in part.items() if key != "name")
    return f"{part['name']}, {options}" if options else str(part["name"])
