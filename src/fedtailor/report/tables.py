"""The comparison table, for the terminal and for files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from rich.table import Table

from fedtailor.printable import cell
from fedtailor.report.groups import by_method
from fedtailor.report.material import Material
from fedtailor.report.results import Result
from fedtailor.report.sheets import Sheet
from fedtailor.report.significance import TESTS, Verdict, against, choose_baseline


@dataclass(frozen=True)
class Measure:
    """A column: what it is called, a run's number, and how the numbers of several seeds are written."""

    title: str
    of: Callable[[Result], float]
    written: Callable[[np.ndarray], str]

    def numbers(self, runs: Iterable[Result]) -> np.ndarray:
        return np.array([self.of(run) for run in runs], dtype=float)

    def cell(self, runs: Sequence[Result]) -> str:
        plain = self.written is _percent and not runs[0].headline.percent
        return (_plain if plain else self.written)(self.numbers(runs))

    def titled(self, runs: Sequence[Result]) -> str:
        """The title, with the metric's own name, and for the best round with what it was chosen on."""
        chosen = "validation data" if runs and all(run.validated for run in runs) else "test data"
        title = self.title.replace("(pooled)", f"(chosen on {chosen})") if self is BEST else self.title
        return title.replace("accuracy", runs[0].headline.name) if runs else title


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def _percent(values: np.ndarray) -> str:
    numbers = 100 * values
    return f"{numbers.mean():.2f} ± {numbers.std():.2f}" if len(numbers) > 1 else f"{numbers[0]:.2f}"


def _plain(values: np.ndarray) -> str:
    return f"{values.mean():.4g} ± {values.std():.2g}" if len(values) > 1 else f"{values[0]:.4g}"


def _bytes(values: np.ndarray) -> str:
    return readable_bytes(float(values.mean()))


MEAN = Measure("accuracy (mean of clients)", lambda r: r.last[r.headline.mean], _percent)
POOLED = Measure("accuracy (pooled)", lambda r: r.last[r.headline.name], _percent)
BEST = Measure("best round (pooled)", lambda r: r.last[r.headline.best], _percent)
WORST = Measure("worst decile", lambda r: r.last[r.headline.worst_decile], _percent)
SPREAD = Measure("spread of clients", lambda r: r.last[r.headline.spread], _percent)
BYTES = Measure("bytes per round", lambda r: r.bytes_per_round, _bytes)
PACE = Measure("seconds per round", lambda r: r.seconds_per_round, lambda v: f"{v.mean():.3g}")
SECONDS = Measure("seconds", lambda r: r.seconds, lambda v: f"{v.mean():.1f}")

BRIEF = (MEAN, BEST, WORST, BYTES, SECONDS)  # what a terminal has room for
FULL = (MEAN, POOLED, BEST, WORST, SPREAD, BYTES, PACE)
WIDEST = 22  # a method in the terminal


def comparison_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row a method: percentages with ± std over seeds, bytes both ways, seconds of training, evaluation and communication."""
    return [(name, *(measure.cell(runs) for measure in BRIEF)) for name, runs in by_method(results).items()]


def _header(results: Sequence[Result]) -> tuple[str, ...]:
    return "method", *(measure.titled(results) for measure in BRIEF)


def comparison_table(results: Sequence[Result], title: str = "") -> Table:
    table = Table(title=title or None)
    for name in _header(results):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name == "method")
    for method, *numbers in comparison_rows(results):
        # A method with many options is broken over lines, so that there is room for its numbers.
        table.add_row(fill(method, WIDEST, break_long_words=False, break_on_hyphens=False), *numbers)
    return table


def comparison_csv(results: Sequence[Result]) -> str:
    return write_csv([_header(results), *comparison_rows(results)])


def comparison_sheet(title: str, results: Sequence[Result], baseline: str = "", notes: Sequence[str] = ()) -> Sheet:
    """The whole comparison of runs on the same clients: every measure, and whether the best (or a baseline) leads by more than chance."""
    groups = by_method([r for r in results if r.evaluated])
    base = choose_baseline(groups, baseline) if groups else ""
    verdicts = against(groups, base) if groups else {}
    role = "baseline" if baseline and base == baseline else "best"
    rows = [
        (name, _runs(runs), *(m.cell(runs) for m in FULL), role if name == base else str(verdicts.get(name, "—")))
        for name, runs in groups.items()
    ]
    header = ("method", "runs", *(measure.titled(results) for measure in FULL), f"against the {role}")
    if not rows:
        return Sheet(title, header, rows, [*notes, *_empty(results)])
    meaning = [
        "Of the last evaluated round but for the best, shares in percent"
        + ("; ± is the standard deviation over runs." if any(len(runs) > 1 for runs in groups.values()) else "."),
        "Worst decile: mean over the tenth of clients that fare worst. Spread: standard deviation over clients. "
        "Bytes: both ways, all clients together.",
    ]
    return Sheet(
        title, header, rows, [*notes, *_empty(results), *meaning, *_tests(verdicts, role)], left=2, strong=base
    )


def comparison_numbers(material: Material) -> str:
    """The comparisons as CSV for programs: plain numbers (accuracies from 0 to 1, bytes, seconds), each with its std over runs."""
    header = ["federation", "method", "runs", "finished"]
    rows: list[list[object]] = []
    for title, results in material.federations.items():
        groups = by_method([r for r in results if r.evaluated])
        verdicts = against(groups, choose_baseline(groups, material.baseline)) if groups else {}
        note = " ".join(material.scale(results))
        for name, runs in groups.items():
            numbers = [x for m in FULL for x in (m.numbers(runs).mean(), m.numbers(runs).std())]
            verdict = verdicts.get(name)
            tested = (verdict.p, verdict.n, verdict.over) if verdict else ("", "", "")
            rows.append([title, name, len(runs), sum(r.finished for r in runs), *numbers, *tested, note])
    columns = [text for measure in FULL for text in (measure.title, f"{measure.title}, std")]
    return write_csv([[*header, *columns, "p", "pairs", "paired over", "note"], *rows])


def write_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV in which no text can be a formula or a command of the terminal."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(v) if isinstance(v, str) else v for v in row] for row in rows)
    return text.getvalue()


def stand(result: Result) -> str:
    """How far a run came: 'finished', or 'failed after round 3 of 20'."""
    if result.finished:
        return "finished"
    return f"{result.state} after round {result.rounds} of {result.config['rounds']}"


def _runs(runs: Sequence[Result]) -> str:
    unfinished = ", ".join(stand(run) for run in runs if not run.finished)
    return f"{len(runs)} ({unfinished})" if unfinished else str(len(runs))


def _empty(results: Sequence[Result]) -> list[str]:
    names = [f"{r.method}, seed {r.seed} ({stand(r)})" for r in results if not r.evaluated]
    return [f"Without an evaluated round, so not in the table: {'; '.join(names)}."] if names else []


def _tests(verdicts: Mapping[str, Verdict], role: str) -> list[str]:
    if not verdicts:
        return []
    tests = ". ".join(TESTS[over] for over in TESTS if any(v.over == over for v in verdicts.values()))
    count = f" over {len(verdicts)} comparisons" if len(verdicts) > 1 else ""
    return [
        f"Against the {role}: {tests}. Two-sided, corrected after Holm{count}; in brackets n. "
        "Only finished runs are tested; — where there is no pair."
    ]
