"""Write docs/results/heart.md: FLamby's Fed-Heart-Disease, measured beside published, and what personalized methods add.

    python -m bench.heart runs/flamby --page docs/results/heart.md

The runs are those of `fedtailor reproduce flamby/heart` and `flamby/personalized`, in folders of these names below the one that is given:
finished ones are kept, missing ones carried out (35 and 80 runs, about 10 CPU minutes). The page is made of the two reproduction.json.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from fedtailor.cli.reproduction import PlannedReproduction
from fedtailor.experiment.config import Config
from fedtailor.files import replace_text
from fedtailor.papers.reproduction import ReproducedCell, Reproduction

HEADLINE = "# FLamby's Fed-Heart-Disease: four hospitals"
LOCAL, SHARED = "local", "fedavg"


def reproduced(name: str, out: Path, console: Console) -> Reproduction:
    """Carry out what is missing of a preset; return its numbers as its file has them."""
    folder = out / name.partition("/")[2]
    if PlannedReproduction.plan(name, "full", [], folder).carry_out(console, workers=1) is None:
        raise SystemExit(130)
    return Reproduction.read(folder)


def test_rows() -> dict[str, int]:
    federation = Config.load(words=["data=heart", "data.protocol=flamby"]).federation()
    return {client.name: len(client.test) for client in federation.clients}


def agrees(cell: ReproducedCell, rows: int) -> bool:
    """Whether the difference is at most two published standard deviations or one test row, whichever is more."""
    assert cell.difference is not None
    return abs(cell.difference) <= max(2 * (cell.published_std or 0.0), 100 / rows) + 1e-9


def benchmark_section(found: Reproduction, rows: dict[str, int]) -> Iterable[str]:
    cells = {(c.method, c.column): c for c in found.cells}
    outside = [f"{c.method} at {c.column}" for c in found.cells if not agrees(c, rows[c.column])]
    yield "## The benchmark's strategies\n"
    yield "Accuracy in %, mean ± standard deviation of 5 seeds; in brackets as published.\n"
    lines = []
    for method in dict.fromkeys(c.method for c in found.cells):
        own = [cells[method, hospital] for hospital in rows]
        lines.append([method, *(f"{_number(c)} ({_published(c)})" for c in own)])
    yield from _table(["strategy", *(f"{name}, {n} test rows" for name, n in rows.items())], lines)
    yield (
        f"\n{len(cells) - len(outside)} of {len(cells)} numbers lie within two published standard deviations or one test row of the "
        f"published one{'; not: ' + ', '.join(outside) if outside else ''}.\n"
    )
    yield from (f"- {choice}" for choice in found.choices)


def personal_section(found: Reproduction, rows: dict[str, int]) -> Iterable[str]:
    by = {(c.method, c.column): c for c in found.cells}
    methods = list(dict.fromkeys(c.method for c in found.cells))
    means = {m: [by[m, hospital].measured or np.nan for hospital in rows] for m in methods}
    mean = {m: float(np.mean(values)) for m, values in means.items()}
    yield "\n## Every method that can do a binary task\n"
    yield (
        "The same protocol. The mean is over hospitals, each counting alike; gains are differences of these means. Worse off: hospitals "
        "whose mean over seeds is below that of training alone (`local`).\n"
    )
    lines = []
    for m in sorted(methods, key=lambda m: -mean[m]):
        worse = [name for name, own, alone in zip(rows, means[m], means[LOCAL], strict=True) if own < alone - 1e-9]
        gains = (f"{mean[m] - mean[LOCAL]:+.1f}", f"{mean[m] - mean[SHARED]:+.1f}")
        own = [_number(by[m, hospital]) for hospital in rows]
        lines.append([m, *own, f"{mean[m]:.1f}", *gains, ", ".join(worse) or "none"])
    yield from _table(["method", *rows, "mean", "over alone", "over FedAvg", "worse off than alone"], lines)
    best, unharmed = lines[0], [line[0] for line in lines if line[-1] == "none" and line[0] != LOCAL]
    yield (
        f"\nThe highest mean is {best[0]}'s, {best[-3]} points over training alone. "
        f"Methods that leave no hospital worse off: {', '.join(unharmed) or 'none'}. One row of Switzerland's 16 is 6 points of its "
        "column and 1.6 of the mean, so differences of a point or two say little.\n"
    )
    yield from (f"- {choice}" for choice in found.choices[:3])


def page(benchmark: Reproduction, personal: Reproduction) -> str:
    rows = test_rows()
    about = [
        HEADLINE,
        "",
        "Written by `python -m bench.heart`, which runs `fedtailor reproduce flamby/heart` and `flamby/personalized`. The data comes with "
        "the package: `data=heart data.protocol=flamby`.",
        "",
    ]
    lines = [*about, *benchmark_section(benchmark, rows), *personal_section(personal, rows), ""]
    return "\n".join(line if line.startswith("|") else _wrapped(line) for line in lines)


def _wrapped(text: str) -> str:
    """Wrap a paragraph or list item; empty lines before and after it stay."""
    inner = text.strip("\n")
    before, _, after = text.partition(inner) if inner else ("", "", text)
    return before + textwrap.fill(inner, 140, subsequent_indent="  " if inner.startswith("- ") else "") + after


def _number(cell: ReproducedCell) -> str:
    return cell.gap if cell.measured is None else f"{cell.measured:.1f} ± {cell.measured_std or 0.0:.1f}"


def _published(cell: ReproducedCell) -> str:
    return cell.published_text + ("" if cell.published_std is None else f" ± {cell.published_std:.1f}")


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|---{'|---:' * (len(header) - 1)}|"
    yield from (f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--page", type=Path, default=Path("docs/results/heart.md"))
    asked = parser.parse_args()
    console = Console()
    found = [reproduced(name, asked.out, console) for name in ("flamby/heart", "flamby/personalized")]
    replace_text(asked.page, page(*found))
    console.print(f"Wrote {asked.page}.")


if __name__ == "__main__":
    main()
