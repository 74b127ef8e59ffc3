"""A reproduced table: measured beside published, for the terminal, the page and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.table import Table

from fedtailor.files import replace_text
from fedtailor.papers.comparison import Comparison
from fedtailor.papers.presets import Preset, presets
from fedtailor.papers.reproduction import FILE, FULL, ReproducedCell, Reproduction, ranks
from fedtailor.report.charts import Chart, Series
from fedtailor.report.sheets import Sheet, write_csv
from fedtailor.report.templates import markdown

HEADER = ("method", "measured", "published", "difference", "rank", "published rank")
FIELDS = (
    *("column", "method", "measured", "measured_std", "seeds", "published", "published_std"),
    *("difference", "rank", "published_rank", "metric", "scale", "gap"),
)


def listing() -> Table:
    """List all tables and figures with their titles and sizes."""
    table = Table("name", "title", "cells", "data sets", box=None, pad_edge=False)
    for preset in presets().values():
        table.add_row(preset.name, preset.title, str(len(preset.cells)), ", ".join(data_sets(preset)))
    return table


def data_sets(preset: Preset) -> list[str]:
    given = (override for cell in preset.cells for part in cell.parts for override in part.overrides)
    named = {one.partition("=")[2] for one in given if one.startswith(("data=", "data.path=", "data.proxy="))}
    return sorted(named - {"folder"})


def write_tables(comparison: Comparison, out: Path) -> None:
    found = comparison.reproduction
    replace_text(out / "table.md", reproduction_markdown(found))
    replace_text(out / "table.csv", reproduction_csv(found))
    replace_text(out / FILE, found.model_dump_json(indent=1))


def column_sheets(found: Reproduction) -> list[Sheet]:
    """One sheet per column: measured and published numbers, their difference and ranks."""
    sheets = []
    for name, cells in found.columns.items():
        places = [["" if r is None else str(r) for r in pair] for pair in ranks(cells)]
        rows = [(cell.method, *_numbers(cell), *pair) for cell, pair in zip(cells, places, strict=True)]
        order = found.spearman.get(name)
        agreement = "" if order is None else f"Spearman's rank correlation {order:.2f}. "
        caption = f"{agreement}Measured: {cells[0].metric}. Scale: {found.scale or FULL}."
        sheets.append(Sheet(name, HEADER, rows, [caption]))
    return sheets


def reproduction_markdown(found: Reproduction) -> str:
    return markdown("reproduction.md", found=found, scale=found.scale or FULL, sheets=column_sheets(found))


def reproduction_csv(found: Reproduction) -> str:
    rows: list[tuple[object, ...]] = [FIELDS]
    for name, cells in found.columns.items():
        for cell, places in zip(cells, ranks(cells), strict=True):
            numbers = (cell.measured, cell.measured_std, cell.seeds, cell.published_text, cell.published_std)
            about = (cell.metric, found.scale or FULL, cell.gap)
            rows.append((name, cell.method, *numbers, cell.difference, *places, *about))
    return write_csv(rows)


def agreement_chart(found: Reproduction) -> Chart:
    """Chart measured over published numbers, one dot per method; on the diagonal they agree."""
    both = [cell for cell in found.cells if cell.difference is not None]
    values = np.array([[cell.published, cell.measured] for cell in both] or [[0, 100]], dtype=float)
    ends = np.array([values.min(), values.max()])
    series = [Series("equal", ends, ends, kind="guide")]
    for column in found.columns:
        cells = [cell for cell in both if cell.column == column]
        x, y = (np.array([getattr(cell, side) for cell in cells], dtype=float) for side in ("published", "measured"))
        std = np.array([cell.measured_std or 0 for cell in cells], dtype=float)
        series.append(Series(column, x, y, y - std, y + std, "dots", [cell.method for cell in cells]))
    return Chart("published", "measured", series)


def _numbers(cell: ReproducedCell) -> tuple[str, str, str]:
    digits = 3 if cell.measure == "last-mean" else 2
    published = cell.published_text or ("" if cell.published is None else f"{cell.published:.{digits}f}")
    published += "" if cell.published_std is None else f" ± {cell.published_std:.{digits}f}"
    measured = "gap" if cell.measured is None else f"{cell.measured:.{digits}f}"
    measured += "" if cell.measured_std is None else f" ± {cell.measured_std:.{digits}f}"
    return measured, published, "" if cell.difference is None else f"{cell.difference:+.{digits}f}"
