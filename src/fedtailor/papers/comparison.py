"""Measured numbers beside published ones: differences, ranks and their correlation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.files import replace_text
from fedtailor.papers.grid import Grid, Job
from fedtailor.papers.measures import MEASURES, Run
from fedtailor.papers.presets import Cell, Preset

FEWEST = 3  # rows that an order is compared over


@dataclass(frozen=True)
class Entry:
    """A cell with what was measured; where nothing was, `gap` says why."""

    cell: Cell
    values: tuple[float, ...]  # one a seed
    runs: tuple[str, ...]
    gap: str = ""

    @property
    def measured(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def measured_std(self) -> float | None:
        return float(np.std(self.values)) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        if self.measured is None or self.cell.published is None:
            return None
        return self.measured - self.cell.published


@dataclass(frozen=True)
class Comparison:
    """A whole table or figure; `scale` says what was shrunk."""

    preset: Preset
    scale: str
    entries: list[Entry]
    grid: Grid

    def column(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.cell.column == name]

    def folders(self, row: str, column: str) -> list[Path]:
        """The finished runs of a cell that has one run a seed."""
        cells = [e.cell for e in self.entries if (e.cell.row, e.cell.column) == (row, column)]
        jobs = [self.grid.runs(cell, seed)[0] for cell in cells for seed in range(self.preset.seeds)]
        return [job.folder for job in jobs if job.finished]

    def ranks(self, name: str) -> list[tuple[int | None, int | None]]:
        """Of each row of a column, its place among the measured and among the published numbers, the best being 1."""
        import pandas as pd  # here and below, since it takes long to import

        entries = self.column(name)
        numbers = ([e.measured for e in entries], [e.cell.published for e in entries])
        lower = MEASURES[entries[0].cell.measure].lower_is_better
        places = (pd.Series(n, dtype=float).rank(ascending=lower, method="min") for n in numbers)
        return [tuple(None if math.isnan(p) else int(p) for p in pair) for pair in zip(*places, strict=True)]  # type: ignore[misc]

    @property
    def spearman(self) -> dict[str, float | None]:
        """Rank correlation of measured and published numbers, by column."""
        import pandas as pd

        found: dict[str, float | None] = {}
        for name in self.preset.columns:
            entries = [e for e in self.column(name) if e.difference is not None]
            measured, told = (
                pd.Series(n, dtype=float).rank()
                for n in ([e.measured for e in entries], [e.cell.published for e in entries])
            )
            varied = measured.nunique() > 1 and told.nunique() > 1
            found[name] = (
                round(float(np.corrcoef(measured, told)[0, 1]), 4) if len(entries) >= FEWEST and varied else None
            )
        return found

    def values(self) -> dict[str, Any]:
        """As plain values, for reproduction.json."""
        return {
            "preset": self.preset.name,
            "title": self.preset.title,
            "scale": self.scale,
            "choices": list(self.preset.choices),
            "cells": [
                {
                    "method": e.cell.row,
                    "column": e.cell.column,
                    "published": e.cell.published,
                    "published_std": e.cell.published_std,
                    "published_text": e.cell.number.value if e.cell.number else "",
                    "measured": e.measured,
                    "measured_std": e.measured_std,
                    "seeds": len(e.values),
                    "metric": MEASURES[e.cell.measure].title,
                    "runs": list(e.runs),
                    "gap": e.gap,
                }
                for e in self.entries
            ],
            "spearman": self.spearman,
        }

    def write(self, out: Path) -> None:
        replace_text(
            out / "reproduction.json", json.dumps(self.values(), indent=1, ensure_ascii=False, allow_nan=False)
        )


def compare(grid: Grid, scale: str, gaps: Mapping[str, str]) -> Comparison:
    """Look at all finished runs of a grid."""
    preset = grid.preset
    return Comparison(preset, scale, [_entry(grid, cell, gaps) for cell in preset.cells], grid)


def _entry(grid: Grid, cell: Cell, gaps: Mapping[str, str]) -> Entry:
    measure = MEASURES[cell.measure]
    if not measure.needs_run:
        run = Run(grid.out, Job(grid.out, cell.parts[0].words, False).config)
        return Entry(cell, (measure.of(run),), ())
    values, names, reasons = [], [], []
    for seed in range(grid.preset.seeds):
        jobs = grid.runs(cell, seed)
        undone = [job for job in jobs if not job.finished]
        if undone:
            reasons.append(gaps.get(undone[0].name, "not finished yet"))
            continue
        looked = [measure.of(Run(job.folder, job.config, cell.group)) for job in jobs]
        value = sum(part.weight * number for part, number in zip(cell.parts, looked, strict=True))
        names += [str(job.folder.relative_to(grid.out)) for job in jobs]
        if math.isfinite(value):
            values.append(value)
        else:
            reasons.append("no client counts here")
    return Entry(cell, tuple(values), tuple(dict.fromkeys(names)), reasons[0] if reasons else "")
