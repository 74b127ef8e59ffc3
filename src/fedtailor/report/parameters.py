"""The hyper-parameters of runs: first what differs, then what all share."""

from __future__ import annotations

from collections.abc import Sequence

from fedtailor.report.groups import by_method, differing, flat
from fedtailor.report.results import Result
from fedtailor.report.sheets import Sheet

OWN_COLUMN = {"method", "seed"}


def differing_parameters(results: Sequence[Result]) -> Sheet:
    """A row for each method and setting: the method's own options, its seeds, and every other key that is not the same everywhere."""
    flats = [flat(result.config) for result in results]
    keys = {key for key, _ in differing(flats) if not key.startswith("method.")} - OWN_COLUMN
    columns = [key for key in dict.fromkeys(k for one in flats for k in one) if key in keys]
    rows = []
    for name, runs in by_method(results).items():
        one = flat(runs[0].config)
        own = ", ".join(f"{k.removeprefix('method.')}={v}" for k, v in one.items() if k.startswith("method."))
        seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
        rows.append((name, own or "—", seeds, *(_values(runs, key) for key in columns)))
    return Sheet("Hyper-parameters", ("method", "its options", "seeds", *columns), rows, left=3 + len(columns))


def common_parameters(results: Sequence[Result]) -> Sheet:
    """Every key that all runs have with one value."""
    flats = [flat(result.config) for result in results]
    apart = {key for key, _ in differing(flats)}
    shared = {k: v for k, v in flats[0].items() if k not in apart and all(k in one for one in flats)}
    rows = [(k, str(v)) for k, v in shared.items() if not k.startswith("method.")]
    return Sheet("Common to all runs", ("key", "value"), rows, left=2)


def _values(runs: Sequence[Result], key: str) -> str:
    return ", ".join(dict.fromkeys(str(flat(run.config).get(key, "—")) for run in runs))
