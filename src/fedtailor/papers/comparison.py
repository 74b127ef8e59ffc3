"""The measured numbers of each cell of a preset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedtailor.papers.grid import Job, RunGrid
from fedtailor.papers.measures import MEASURES, MeasuredRun
from fedtailor.papers.presets import Preset, PresetCell
from fedtailor.papers.reproduction import ReproducedCell, Reproduction, rank_correlation


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with its measured numbers; if there are none, `gap` tells why."""

    cell: PresetCell
    values: tuple[float, ...]  # one per seed
    runs: tuple[str, ...]
    gap: str = ""

    @property
    def measured(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def measured_std(self) -> float | None:
        return float(np.std(self.values)) if len(self.values) > 1 else None

    def reproduced(self) -> ReproducedCell:
        number = self.cell.number
        return ReproducedCell(
            method=self.cell.row,
            column=self.cell.column,
            published=self.cell.published,
            published_std=self.cell.published_std,
            published_text=number.value if number else "",
            measured=self.measured,
            measured_std=self.measured_std,
            seeds=len(self.values),
            measure=self.cell.measure,
            metric=MEASURES[self.cell.measure].title,
            runs=list(self.runs),
            gap=self.gap,
        )


@dataclass(frozen=True)
class Comparison:
    """A whole table or figure; `scale` describes what was scaled down."""

    preset: Preset
    scale: str
    entries: list[MeasuredCell]
    grid: RunGrid

    def column(self, name: str) -> list[MeasuredCell]:
        return [entry for entry in self.entries if entry.cell.column == name]

    def folders(self, row: str, column: str) -> list[Path]:
        """Return the folders of a cell's finished runs, one per seed."""
        cells = [e.cell for e in self.entries if (e.cell.row, e.cell.column) == (row, column)]
        jobs = [self.grid.runs(cell, seed)[0] for cell in cells for seed in self.preset.seed_numbers]
        return [job.folder for job in jobs if job.finished]

    @cached_property
    def reproduction(self) -> Reproduction:
        """The data behind reproduction.json, the tables and the page."""
        preset = self.preset
        cells = [entry.reproduced() for entry in self.entries]
        orders = {name: rank_correlation([c for c in cells if c.column == name]) for name in preset.columns}
        about = {"preset": preset.name, "title": preset.title, "scale": self.scale, "choices": list(preset.choices)}
        return Reproduction.model_validate(about | {"cells": cells, "spearman": orders})


def comparison_of(grid: RunGrid, scale: str, gaps: Mapping[str, str]) -> Comparison:
    """Measure all finished runs of a grid."""
    preset = grid.preset
    return Comparison(preset, scale, [_entry(grid, cell, gaps) for cell in preset.cells], grid)


def _entry(grid: RunGrid, cell: PresetCell, gaps: Mapping[str, str]) -> MeasuredCell:
    measure = MEASURES[cell.measure]
    if not measure.needs_run:
        run = MeasuredRun(grid.out, Job(grid.out, cell.parts[0].overrides, False).config)
        return MeasuredCell(cell, (measure.of(run),), ())
    values, names, reasons = [], [], []
    for seed in grid.preset.seed_numbers:
        jobs = grid.runs(cell, seed)
        undone = [job for job in jobs if not job.finished]
        if undone:
            reasons.append(gaps.get(undone[0].name, "not finished yet"))
            continue
        looked = [measure.of(MeasuredRun(job.folder, job.config, cell.group)) for job in jobs]
        value = sum(part.weight * number for part, number in zip(cell.parts, looked, strict=True))
        names += [str(job.folder.relative_to(grid.out)) for job in jobs]
        if math.isfinite(value):
            values.append(value)
        else:
            reasons.append("no client counts here")
    return MeasuredCell(cell, tuple(values), tuple(dict.fromkeys(names)), reasons[0] if reasons else "")
