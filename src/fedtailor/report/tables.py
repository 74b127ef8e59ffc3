"""The comparison table, for the terminal and for files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from fedtailor.report.pictures import by_method
from fedtailor.report.results import Result

HEADER = ("method", "accuracy (mean of clients)", "best round (pooled)", "worst decile", "bytes per round", "seconds")


def comparison_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row a method: percentages with ± std over seeds, bytes both ways, seconds of training, evaluation and communication."""
    return [
        (
            name,
            _percent(runs, lambda r: r.last["accuracy_mean"]),
            _percent(runs, lambda r: r.last["best_accuracy"]),
            _percent(runs, lambda r: r.last["worst_decile"]),
            readable_bytes(float(np.mean([r.bytes_per_round for r in runs]))),
            f"{np.mean([r.seconds for r in runs]):.1f}",
        )
        for name, runs in by_method(results).items()
    ]


def comparison_table(results: Sequence[Result], title: str = "") -> Table:
    table = Table(title=title or None)
    for name in HEADER:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name == "method")
    for row in comparison_rows(results):
        table.add_row(*row)
    return table


def comparison_csv(results: Sequence[Result]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(comparison_rows(results))
    return text.getvalue()


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def _percent(runs: Sequence[Result], value: Callable[[Result], float]) -> str:
    numbers = 100 * np.array([value(run) for run in runs], dtype=float)
    return f"{numbers.mean():.2f} ± {numbers.std():.2f}" if len(runs) > 1 else f"{numbers[0]:.2f}"
