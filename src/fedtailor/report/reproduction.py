"""A reproduced table: measured beside published, for the terminal and for files."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from fedtailor.files import replace_text
from fedtailor.papers.comparison import Comparison, Entry
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.presets import Preset, presets
from fedtailor.report.tables import write_csv

HEADER = ("method", "measured", "published", "difference", "rank", "published rank")
FIELDS = (
    *("column", "method", "measured", "measured_std", "seeds", "published", "published_std"),
    *("difference", "rank", "published_rank", "metric", "scale", "gap"),
)
FULL = "full: the paper's own protocol"


def listing() -> Table:
    """All tables and figures with their titles and sizes."""
    table = Table("name", "title", "cells", "data sets", box=None, pad_edge=False)
    for preset in presets().values():
        table.add_row(preset.name, preset.title, str(len(preset.cells)), ", ".join(data_sets(preset)))
    return table


def data_sets(preset: Preset) -> list[str]:
    words = (word for cell in preset.cells for part in cell.parts for word in part.words)
    return sorted(
        {word.partition("=")[2] for word in words if word.startswith(("data=", "data.path=", "data.proxy="))}
        - {"folder"}
    )


def write_tables(comparison: Comparison, out: Path) -> None:
    replace_text(out / "table.md", as_markdown(comparison))
    replace_text(out / "table.csv", as_csv(comparison))
    comparison.write(out)


def column_tables(comparison: Comparison) -> list[Table]:
    """One table a column, for the terminal."""
    tables = []
    for name in comparison.preset.columns:
        caption = Text(_caption(comparison, name))
        table = Table(title=Text(name), caption=caption, caption_justify="left", title_justify="left")
        for head in HEADER:
            table.add_column(head, justify="left" if head == "method" else "right")
        for row in _rows(comparison, name):
            table.add_row(*map(Text, row))
        tables.append(table)
    return tables


def as_markdown(comparison: Comparison) -> str:
    preset = comparison.preset
    lines = [f"# {preset.name}: {preset.title}", "", f"Scale: {comparison.scale or FULL}.", ""]
    for name in preset.columns:
        lines += [f"## {_cell(name)}", "", _line(HEADER), _line(("---",) + ("---:",) * (len(HEADER) - 1))]
        lines += [_line(row) for row in _rows(comparison, name)]
        lines += ["", _cell(_caption(comparison, name)), ""]
    gaps = gaps_of(comparison)
    if gaps:
        lines += ["## Gaps", "", *(f"- {_cell(', '.join(where))}: {_cell(why)}" for why, where in gaps.items()), ""]
    lines += ["## Choices", "", "What the paper leaves open and was chosen here:", ""]
    lines += [f"- {choice}" for choice in preset.choices]
    return "\n".join(lines) + "\n"


def as_csv(comparison: Comparison) -> str:
    rows: list[tuple[object, ...]] = [FIELDS]
    for name in comparison.preset.columns:
        for entry, ranks in zip(comparison.column(name), comparison.ranks(name), strict=True):
            cell = entry.cell
            told = cell.number.value if cell.number else ""
            numbers = (entry.measured, entry.measured_std, len(entry.values), told, cell.published_std)
            about = (MEASURES[cell.measure].title, comparison.scale or FULL, entry.gap)
            rows.append((name, cell.row, *numbers, entry.difference, *ranks, *about))
    return write_csv(rows)


def gaps_of(comparison: Comparison) -> dict[str, list[str]]:
    """Each reason for a gap, with the columns (or the cells) that it leaves open."""
    found: dict[str, list[str]] = {}
    for entry in comparison.entries:
        if entry.gap:
            found.setdefault(entry.gap, []).append(f"{entry.cell.row} on {entry.cell.column}")
    for reason, where in found.items():
        columns = dict.fromkeys(e.cell.column for e in comparison.entries if e.gap == reason)
        whole = [c for c in columns if all(e.gap == reason for e in comparison.column(c))]
        found[reason] = [*whole, *(w for w in where if not any(w.endswith(f" on {c}") for c in whole))]
    return found


def _rows(comparison: Comparison, name: str) -> list[tuple[str, ...]]:
    pairs = zip(comparison.column(name), comparison.ranks(name), strict=True)
    return [(entry.cell.row, *_numbers(entry), *("" if r is None else str(r) for r in ranks)) for entry, ranks in pairs]


def _numbers(entry: Entry) -> tuple[str, str, str]:
    digits = 3 if entry.cell.measure == "last-mean" else 2
    cell = entry.cell
    told = "" if cell.number is None else cell.number.value
    told += f" ± {cell.number.std}" if cell.number and cell.number.std else ""
    measured = "gap" if entry.measured is None else f"{entry.measured:.{digits}f}"
    measured += "" if entry.measured_std is None else f" ± {entry.measured_std:.{digits}f}"
    difference = "" if entry.difference is None else f"{entry.difference:+.{digits}f}"
    return measured, told, difference


def _caption(comparison: Comparison, name: str) -> str:
    spearman = comparison.spearman[name]
    order = f"Spearman's rank correlation {spearman:.2f}. " if spearman is not None else ""
    metric = MEASURES[comparison.column(name)[0].cell.measure].title
    return f"{order}Measured: {metric}. Scale: {comparison.scale or FULL}."


def _line(fields: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_cell, fields)) + " |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
