"""The comparison of methods: its columns, and its tables for terminal, page and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from fedtailor.analysis.groups import NO_MATTER, by_method, differing
from fedtailor.analysis.results import Result
from fedtailor.analysis.significance import TESTS, Verdict, against, choose_baseline, ranked
from fedtailor.experiment.config import flat
from fedtailor.experiment.headline import Headline, Statistic
from fedtailor.report.attack import attack_notes, backdoor_success
from fedtailor.report.charts import Groups
from fedtailor.report.material import Material
from fedtailor.report.privacy import epsilon, privacy_notes, sample_epsilon
from fedtailor.report.sheets import Best, Sheet, write_csv

BRIEF: tuple[Statistic, ...] = ("mean", "best", "worst")  # what fits on a terminal
WHOLE: tuple[Statistic, ...] = ("mean", "pooled", "best", "worst", "spread")
STATISTICS = (
    "Worst decile: mean over the tenth of clients that fare worst. Spread: standard deviation over clients. "
    "Bytes: both ways, all clients together."
)


@dataclass(frozen=True)
class TableColumn:
    """A column of the comparison: its title, the number of a run, and how the numbers of several seeds are formatted."""

    title: str
    of: Callable[[Result], float]
    written: Callable[[np.ndarray], str]
    lower_is_better: bool = True  # as costs are

    def numbers(self, runs: Iterable[Result]) -> np.ndarray:
        return np.array([self.of(run) for run in runs], dtype=float)

    def cells(self, groups: Groups) -> list[str]:
        """Return the cell of each method; the best among the finished methods is marked."""
        finished = [all(r.finished for r in runs) for runs in groups.values()]
        means = np.array([self.numbers(runs).mean() for runs in groups.values()])
        known = means[finished & np.isfinite(means)]
        best = known.min(initial=np.inf) if self.lower_is_better else known.max(initial=-np.inf)
        marked = finished & (means == best) & (len(set(known)) > 1)
        written = [self.written(self.numbers(runs)) for runs in groups.values()]
        return [Best(text) if is_best else text for text, is_best in zip(written, marked, strict=True)]


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


BYTES = TableColumn("bytes per round", lambda r: r.bytes_per_round, lambda v: readable_bytes(float(v.mean())))
PACE = TableColumn("seconds per round", lambda r: r.seconds / len(r.records), lambda v: f"{v.mean():.3g}")
COSTS = (BYTES, PACE)
SECONDS = TableColumn("seconds", lambda r: r.seconds, lambda v: f"{v.mean():.1f}")
RISKS = (  # shown where a run has them
    TableColumn("backdoor success", backdoor_success, Headline().written),
    TableColumn("ε of clients", epsilon, lambda v: f"{v.mean():.3g}" if np.isfinite(v).all() else "—"),
    TableColumn("ε of samples", sample_epsilon, lambda v: f"{v.max():.3g}" if np.isfinite(v).all() else "—"),
)


def statistic_column(metric: Headline, statistic: Statistic, *, validated: bool = False) -> TableColumn:
    """Return the column for a statistic of a metric at the last evaluation."""
    titles: dict[Statistic, str] = {
        "mean": f"{metric.title} (mean of clients)",
        "pooled": f"{metric.title} (pooled)",
        "best": f"best round (chosen on {'validation' if validated else 'test'} data)",
        "worst": "worst decile",
        "spread": "spread of clients",
    }
    lower = metric.lower_is_better or statistic == "spread"
    return TableColumn(titles[statistic], lambda r: metric.of(r.last, statistic), metric.written, lower)


def table_columns(
    results: Sequence[Result], metric: Headline, wanted: Sequence[Statistic], *costs: TableColumn
) -> list[TableColumn]:
    """Return the columns of a comparison."""
    validated = bool(results) and all(any(k.startswith("validation_") for k in r.last) for r in results)
    risks = [risk for risk in RISKS if np.isfinite(risk.numbers(results)).any()]
    return [*(statistic_column(metric, s, validated=validated) for s in wanted), *risks, *costs]


def brief_sheet(results: Sequence[Result], title: str = "") -> Sheet:
    """One row per method, best first: the metric ± std over seeds, bytes both ways, seconds of the whole run."""
    metric = results[0].metric
    columns = table_columns(results, metric, BRIEF, BYTES, SECONDS)
    groups = ranked(by_method(results), metric)
    names = [f"{name}{_unfinished(runs)}" for name, runs in groups.items()]
    rows = list(zip(names, *(column.cells(groups) for column in columns), strict=True))
    notes = [*attack_notes(results), *privacy_notes(results)]
    return Sheet(title, ("method", *(column.title for column in columns)), rows, notes)


def comparison_sheets(material: Material) -> list[Sheet]:
    """Return the whole comparison of each federation."""
    return [comparison_sheet(title, runs, material) for title, runs in material.federations.items()]


def comparison_sheet(title: str, results: Sequence[Result], material: Material) -> Sheet:
    """Return every column for runs on the same clients, and whether the best method (or the baseline) leads by more than chance."""
    evaluated = [r for r in results if r.evaluated]
    empty = "; ".join(f"{r.method}, seed {r.seed} ({r.progress})" for r in results if not r.evaluated)
    notes = [*material.scale(results), *attack_notes(results), *privacy_notes(results)]
    notes += [f"Without an evaluated round, so not in the table: {empty}."] if empty else []
    if not evaluated:
        return Sheet(title, ("method",), [], notes)
    columns = table_columns(evaluated, material.metric, WHOLE, *COSTS)
    groups, base, verdicts = _tested(evaluated, material)
    role = "baseline" if base and base == material.baseline else "best"
    counts = [f"{len(runs)}{_unfinished(runs)}" for runs in groups.values()]
    against = [role if name == base else str(verdicts.get(name, "—")) for name in groups]
    rows = list(zip(groups, counts, *(c.cells(groups) for c in columns), against, strict=True))
    header = ("method", "runs", *(c.title for c in columns), f"against the {role}")
    notes += [_meaning(groups, material.metric), STATISTICS, *_tests(verdicts, role)]
    return Sheet(title, header, rows, notes, left=2)


def comparison_numbers(material: Material) -> str:
    """Return the comparisons as CSV for programs: plain numbers (fractions from 0 to 1, bytes, seconds), each with its std over runs."""
    rows: list[dict[str, object]] = []
    columns = table_columns(material.evaluated, material.metric, WHOLE, *COSTS)
    for title, results in material.federations.items():
        groups, _, verdicts = _tested([r for r in results if r.evaluated], material)
        for name, runs in groups.items():
            done = sum(run.finished for run in runs)
            row: dict[str, object] = {"federation": title, "method": name, "runs": len(runs), "finished": done}
            for column in columns:
                row |= {column.title: column.numbers(runs).mean(), f"{column.title}, std": column.numbers(runs).std()}
            test = astuple(verdicts[name]) if name in verdicts else ("", "", "")
            row |= dict(zip(("p", "pairs", "paired over"), test, strict=True))
            rows.append(row | {"note": " ".join(material.scale(results))})
    return write_csv([list(rows[0]), *(list(row.values()) for row in rows)] if rows else [])


def parameter_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return one row per method (its options, its seeds, every other key that differs), and the keys that are common to all runs."""
    groups = by_method(results)
    flats = [{k: v for k, v in flat(runs[0].config).items() if k not in NO_MATTER} for runs in groups.values()]
    apart = {key for key, _ in differing(flats)}
    plain = [k for k in dict.fromkeys(k for one in flats for k in one) if k.partition(".")[0] != "method"]
    columns = [k for k in plain if k in apart]
    rows = []
    for (name, runs), one in zip(groups.items(), flats, strict=True):
        own = ", ".join(f"{k.removeprefix('method.')}={v}" for k, v in one.items() if k.startswith("method."))
        seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
        rows.append((name, own or "—", seeds, *(str(one.get(key, "—")) for key in columns)))
    common = [(k, str(flats[0][k])) for k in plain if k not in apart and all(k in one for one in flats)]
    return [
        Sheet("Hyper-parameters", ("method", "its options", "seeds", *columns), rows, left=3 + len(columns)),
        Sheet("Common to all runs", ("key", "value"), common, left=2),
    ]


def _tested(results: Sequence[Result], material: Material) -> tuple[dict[str, list[Result]], str, dict[str, Verdict]]:
    """Return the runs of each method, the method that all are tested against, and the verdicts."""
    groups = ranked(by_method(results), material.metric)
    base = choose_baseline(groups, material.metric, material.baseline)
    return groups, base, against(groups, base, material.metric)


def _unfinished(runs: Sequence[Result]) -> str:
    left = ", ".join(run.progress for run in runs if not run.finished)
    return f" ({left})" if left else ""


def _meaning(groups: Groups, metric: Headline) -> str:
    percent = " in percent" if metric.unit else ""
    several = "; ± is the standard deviation over runs" if any(len(runs) > 1 for runs in groups.values()) else ""
    better = " Lower is better." if metric.lower_is_better else ""
    bold = " Bold: the best of the finished methods." if len(groups) > 1 else ""
    return f"{metric.heading}{percent}, of the last evaluated round but for the best{several}.{better}{bold}"


def _tests(verdicts: Mapping[str, Verdict], role: str) -> list[str]:
    if not verdicts:
        return []
    tests = ". ".join(TESTS[over] for over in TESTS if any(v.over == over for v in verdicts.values()))
    count = f" over {len(verdicts)} comparisons" if len(verdicts) > 1 else ""
    return [
        f"Against the {role}: {tests}. Two-sided, corrected after Holm{count}; in brackets n. "
        "Only finished runs are tested; — where there is no pair."
    ]
