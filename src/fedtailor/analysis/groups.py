"""Which runs belong together: on the same clients, or of the same method with the same settings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fedtailor.analysis.results import Result
from fedtailor.experiment.config import flat
from fedtailor.methods import methods

NO_MATTER = {"seed", "checkpoint_every", "save_models", "data.root"}  # repeat a run, or change none of its numbers

Flat = dict[str, Any]


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group runs that differ only by seed, named by the method and, where settings differ, those that are not its defaults."""
    flats = [{k: v for k, v in flat(r.config).items() if k not in NO_MATTER} for r in results]
    groups: dict[str, list[Result]] = {}
    for result, words in zip(results, _telling(flats, {"method"}), strict=True):
        usual = _defaults(result.method)
        own = ", ".join(word.removeprefix("method.") for word in words if word not in usual)
        groups.setdefault(f"{result.method} ({own})" if own else result.method, []).append(result)
    return groups


def by_federation(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group runs whose clients hold the same samples if their seeds are equal: only these can be compared."""
    named = {"data", "partition", "clients"}
    flats = [
        {k: v for k, v in flat(r.config).items() if k.partition(".")[0] in named and k not in NO_MATTER}
        for r in results
    ]
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result, one, words in zip(results, flats, _telling(flats, named), strict=True):
        key = (one["data"], str(one["clients"]), f"{one['partition']} partition", *words)
        groups.setdefault(key, []).append(result)
    return {_with_count(key, runs): runs for key, runs in groups.items()}


def differing(flats: Sequence[Flat]) -> set[tuple[str, str]]:
    """Return the keys whose values differ, each with what it is an option of ('' for a plain key)."""
    values: dict[tuple[str, str], list[str]] = defaultdict(list)
    members: Counter[str] = Counter()
    for one in flats:
        members.update({_scope(one, key) for key in one})
        for key, value in one.items():
            values[key, _scope(one, key)].append(repr(value))
    return {place for place, seen in values.items() if len(set(seen)) > 1 or len(seen) < members[place[1]]}


def _with_count(key: tuple[str, ...], runs: Sequence[Result]) -> str:
    """Name a federation; where the data decide the number of clients, take it from the runs."""
    data, clients, *words = key
    count = int(clients) or max(len(run.clients()) for run in runs)
    return ", ".join([data, *([f"{count} clients"] if count else []), *words])


def _telling(flats: Sequence[Flat], named: set[str]) -> list[list[str]]:
    """Return, for each config, the settings that tell it from the others, except keys that are named anyway."""
    apart = {place for place in differing(flats) if place[0] not in named}
    return [[f"{k}={v}" for k, v in one.items() if (k, _scope(one, k)) in apart] for one in flats]


def _defaults(method: str) -> set[str]:
    """Return a method's default options as overrides; none for a method from a file, which would have to be run."""
    if method not in methods.classes:
        return set()
    plain = {f.name: f.default for f in fields(methods.classes[method])}
    return {f"method.{k}={list(v) if isinstance(v, tuple) else v}" for k, v in plain.items()}


def _scope(one: Flat, key: str) -> str:
    chosen, dot, _ = key.partition(".")
    return f"{chosen}={one[chosen]}" if dot and chosen in one else ""
