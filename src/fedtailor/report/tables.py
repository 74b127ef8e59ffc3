"""The comparison of methods: its columns, and its tables for terminal, page and files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from fedtailor.experiment.headline import Headline, Statistic
from fedtailor.printable import cell
from fedtailor.report.groups import by_method, differing, flat
from fedtailor.report.material import Material
from fedtailor.report.results import Result
from fedtailor.report.sheets import Sheet, as_rich
from fedtailor.report.significance import TESTS, Verdict, against, choose_baseline


@dataclass(frozen=True)
class Aspect:
    """A column of the comparison: its title, the number of a run, and how the numbers of several seeds are formatted."""

    title: str
    of: Callable[[Result], float]
    written: Callable[[np.ndarray], str]

    def numbers(self, runs: Iterable[Result]) -> np.ndarray:
        return np.array([self.of(run) for run in runs], dtype=float)

    def cell(self, runs: Iterable[Result]) -> str:
        return self.written(self.numbers(runs))


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


BYTES = Aspect("bytes per round", lambda r: r.bytes_per_round, lambda v: readable_bytes(float(v.mean())))
PACE = Aspect("seconds per round", lambda r: r.seconds_per_round, lambda v: f"{v.mean():.3g}")
SECONDS = Aspect("seconds", lambda r: r.seconds, lambda v: f"{v.mean():.1f}")


def aspect(metric: Headline, statistic: Statistic, *, validated: bool = False) -> Aspect:
    """Return the column for a statistic of a metric at the last evaluation."""
    titles: dict[Statistic, str] = {
        "mean": f"{metric.title} (mean of clients)",
        "pooled": f"{metric.title} (pooled)",
        "best": f"best round (chosen on {'validation' if validated else 'test'} data)",
        "worst": "worst decile",
        "spread": "spread of clients",
    }
    return Aspect(titles[statistic], lambda r: metric.of(r.last, statistic), metric.written)


def aspects(results: Sequence[Result], metric: Headline, *, brief: bool) -> list[Aspect]:
    """Return the columns of a comparison; `brief` keeps those that fit on a terminal."""
    validated = bool(results) and all(r.validated for r in results)
    wanted: tuple[Statistic, ...] = (
        ("mean", "best", "worst") if brief else ("mean", "pooled", "best", "worst", "spread")
    )
    return [*(aspect(metric, s, validated=validated) for s in wanted), BYTES, SECONDS if brief else PACE]


def brief_sheet(results: Sequence[Result], title: str = "", metric: Headline | None = None) -> Sheet:
    """One row per method: the metric ± std over seeds, bytes both ways, seconds of the whole run."""
    columns = aspects(results, metric or results[0].metric, brief=True)
    rows = [(name, *(column.cell(runs) for column in columns)) for name, runs in by_method(results).items()]
    return Sheet(title, ("method", *(column.title for column in columns)), rows)


def comparison_table(results: Sequence[Result], title: str = "", metric: Headline | None = None) -> Table:
    return as_rich(brief_sheet(results, title, metric))


def comparison_csv(results: Sequence[Result], metric: Headline | None = None) -> str:
    sheet = brief_sheet(results, metric=metric)
    return write_csv([sheet.header, *sheet.rows])


def comparison_sheets(material: Material) -> list[Sheet]:
    """Return the whole comparison of each federation."""
    return [comparison_sheet(title, runs, material) for title, runs in material.federations.items()]


def comparison_sheet(title: str, results: Sequence[Result], material: Material) -> Sheet:
    """Return every column for runs on the same clients, and whether the best method (or the baseline) leads by more than chance."""
    evaluated = [r for r in results if r.evaluated]
    notes = [*material.scale(results), *_empty(results)]
    if not evaluated:
        return Sheet(title, ("method",), [], notes)
    columns = aspects(evaluated, material.metric, brief=False)
    groups, base, verdicts = _tested(evaluated, material)
    role = "baseline" if base == material.baseline else "best"
    rows = [
        (name, _runs(runs), *(c.cell(runs) for c in columns), role if name == base else str(verdicts.get(name, "—")))
        for name, runs in groups.items()
    ]
    header = ("method", "runs", *(c.title for c in columns), f"against the {role}")
    notes += [*_meaning(groups, material.metric), *_tests(verdicts, role)]
    return Sheet(title, header, rows, notes, left=2, strong=base)


def comparison_numbers(material: Material) -> str:
    """Return the comparisons as CSV for programs: plain numbers (fractions from 0 to 1, bytes, seconds), each with its std over runs."""
    rows: list[dict[str, object]] = []
    for title, results in material.federations.items():
        evaluated = [r for r in results if r.evaluated]
        groups, _, verdicts = _tested(evaluated, material)
        for name, runs in groups.items():
            done = sum(run.finished for run in runs)
            row: dict[str, object] = {"federation": title, "method": name, "runs": len(runs), "finished": done}
            for column in aspects(material.evaluated, material.metric, brief=False):
                row |= {column.title: column.numbers(runs).mean(), f"{column.title}, std": column.numbers(runs).std()}
            verdict = verdicts.get(name)
            p, pairs, over = (verdict.p, verdict.n, verdict.over) if verdict else ("", "", "")
            note = " ".join(material.scale(results))
            rows.append(row | {"p": p, "pairs": pairs, "paired over": over, "note": note})
    return write_csv([list(rows[0]), *(list(row.values()) for row in rows)] if rows else [])


def _tested(results: Sequence[Result], material: Material) -> tuple[dict[str, list[Result]], str, dict[str, Verdict]]:
    """Return the runs of each method, the method that all are tested against, and the verdicts."""
    groups = by_method(results)
    base = choose_baseline(groups, material.metric, material.baseline) if groups else ""
    return groups, base, against(groups, base, material.metric) if groups else {}


def differing_parameters(results: Sequence[Result]) -> Sheet:
    """List one row per method and setting: the method's own options, its seeds, and every other key that differs."""
    flats = [flat(result.config) for result in results]
    keys = {key for key, _ in differing(flats) if not key.startswith("method.")} - {"method", "seed"}
    columns = [key for key in dict.fromkeys(k for one in flats for k in one) if key in keys]
    rows = []
    for name, runs in by_method(results).items():
        ours = [flat(run.config) for run in runs]
        own = ", ".join(f"{k.removeprefix('method.')}={v}" for k, v in ours[0].items() if k.startswith("method."))
        values = (", ".join(dict.fromkeys(str(one.get(key, "—")) for one in ours)) for key in columns)
        rows.append((name, own or "—", ", ".join(map(str, sorted({run.seed for run in runs}))), *values))
    return Sheet("Hyper-parameters", ("method", "its options", "seeds", *columns), rows, left=3 + len(columns))


def common_parameters(results: Sequence[Result]) -> Sheet:
    """List every key that has the same value in all runs."""
    flats = [flat(result.config) for result in results]
    apart = {key for key, _ in differing(flats)}
    shared = {k: v for k, v in flats[0].items() if k not in apart and all(k in one for one in flats)}
    rows = [(k, str(v)) for k, v in shared.items() if not k.startswith("method.")]
    return Sheet("Common to all runs", ("key", "value"), rows, left=2)


def write_csv(rows: Iterable[Sequence[object]]) -> str:
    """Write rows as CSV in which no text can act as a formula or a terminal command."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(v) if isinstance(v, str) else v for v in row] for row in rows)
    return text.getvalue()


def progress_of(result: Result) -> str:
    """Describe how far a run came: 'finished', or 'failed after round 3 of 20'."""
    if result.finished:
        return "finished"
    return f"{result.state} after round {result.rounds} of {result.config['rounds']}"


def _runs(runs: Sequence[Result]) -> str:
    unfinished = ", ".join(progress_of(run) for run in runs if not run.finished)
    return f"{len(runs)} ({unfinished})" if unfinished else str(len(runs))


def _empty(results: Sequence[Result]) -> list[str]:
    names = [f"{r.method}, seed {r.seed} ({progress_of(r)})" for r in results if not r.evaluated]
    return [f"Without an evaluated round, so not in the table: {'; '.join(names)}."] if names else []


def _meaning(groups: Mapping[str, Sequence[Result]], metric: Headline) -> list[str]:
    percent = " in percent" if metric.unit else ""
    several = "; ± is the standard deviation over runs" if any(len(runs) > 1 for runs in groups.values()) else ""
    better = " Lower is better." if metric.lower_is_better else ""
    return [
        f"{metric.heading}{percent}, of the last evaluated round but for the best{several}.{better}",
        "Worst decile: mean over the tenth of clients that fare worst. Spread: standard deviation over clients. "
        "Bytes: both ways, all clients together.",
    ]


def _tests(verdicts: Mapping[str, Verdict], role: str) -> list[str]:
    if not verdicts:
        return []
    tests = ". ".join(TESTS[over] for over in TESTS if any(v.over == over for v in verdicts.values()))
    count = f" over {len(verdicts)} comparisons" if len(verdicts) > 1 else ""
    return [
        f"Against the {role}: {tests}. Two-sided, corrected after Holm{count}; in brackets n. "
        "Only finished runs are tested; — where there is no pair."
    ]
