"""A paper's published numbers beside the ones measured here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from fedtailor.errors import FedTailorError
from fedtailor.report.charts.style import Chart, axis, looks, numbers, text
from fedtailor.report.sheets import Sheet

FILE = "reproduction.json"
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")


class Cell(BaseModel):
    """One number of a paper's table (in percent), and ours."""

    method: str
    column: str
    published: float | None = None
    published_std: float | None = None
    measured: float | None = None
    measured_std: float | None = None
    seeds: int = 0
    metric: str = ""


class Story(BaseModel):
    """What reproduction.json says."""

    preset: str
    title: str
    scale: str = ""
    choices: list[str] = []
    cells: list[Cell]
    spearman: dict[str, float | None] = {}


@dataclass(frozen=True)
class Reproduction:
    """A table of a paper run again, and the folder that holds its runs."""

    folder: Path
    story: Story

    @property
    def scale(self) -> str:
        """The sentence that belongs beside every number of it; empty when nothing was shrunk."""
        words = self.story.scale.strip().rstrip(".")
        return f"Reproduction of {self.story.preset}, scaled down: {words}." if words else ""

    @property
    def columns(self) -> dict[str, list[Cell]]:
        columns: dict[str, list[Cell]] = {}
        for cell in self.story.cells:
            columns.setdefault(cell.column, []).append(cell)
        return columns


def reproductions_of(runs: Iterable[Path]) -> list[Reproduction]:
    """The reproductions these runs are part of."""
    folders = {folder for run in runs for folder in run.resolve().parents if (folder / FILE).is_file()}
    return [read_reproduction(folder) for folder in sorted(folders)]


def read_reproduction(folder: Path) -> Reproduction:
    try:
        return Reproduction(folder, Story.model_validate_json((folder / FILE).read_bytes()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise FedTailorError(f"'{folder / FILE}' is not a reproduction: {where}: {first['msg']}.") from None


def scale_of(runs: Iterable[Path], reproductions: Sequence[Reproduction]) -> list[str]:
    """The sentences on scale that belong to these runs."""
    whole = [run.resolve() for run in runs]
    return [r.scale for r in reproductions if r.scale and any(run.is_relative_to(r.folder) for run in whole)]


def reproduction_sheet(reproduction: Reproduction) -> Sheet:
    """Published, measured, their difference, and the rank among the methods of the column that have both."""
    rows = []
    for column, cells in reproduction.columns.items():
        for cell, rank in zip(cells, _ranks(cells), strict=True):
            both = cell.published is not None and cell.measured is not None
            gap = f"{(cell.measured or 0) - (cell.published or 0):+.2f}".replace("-", "−") if both else "—"
            published, measured = _number(cell.published, cell.published_std), _number(cell.measured, cell.measured_std)
            rows.append((column, cell.method, published, measured, gap, rank, str(cell.seeds)))
    header = ("column", "method", "published", "measured", "difference", "rank", "seeds")
    return Sheet(reproduction.story.title, header, rows, _notes(reproduction), left=2)


def reproduction_chart(reproduction: Reproduction) -> Chart:
    """Measured over published, a dot a method; on the diagonal they agree."""
    both = [c for c in reproduction.story.cells if c.published is not None and c.measured is not None]
    values = [value for c in both for value in (c.published, c.measured) if value is not None]
    ends = [min(values, default=0.0), max(values, default=100.0)]
    diagonal = {"mode": "lines", "x": ends, "y": ends, "line": {"color": "#888888", "dash": "dot", "width": 1}}
    traces = [diagonal | {"name": "equal", "hoverinfo": "skip", "showlegend": False}]
    for place, (column, (colour, _)) in enumerate(zip(reproduction.columns, looks(), strict=False)):
        cells = [c for c in both if c.column == column]
        traces.append(
            {
                "mode": "markers",
                "name": text(column),
                "x": numbers(np.array([c.published for c in cells], dtype=float)),
                "y": numbers(np.array([c.measured for c in cells], dtype=float)),
                "error_y": {"array": [c.measured_std or 0 for c in cells], "thickness": 1, "width": 2},
                "text": [text(c.method) for c in cells],
                "marker": {"size": 9, "color": colour, "symbol": SYMBOLS[place % len(SYMBOLS)]},
                "hovertemplate": "%{text}<br>published %{x:.2f}, measured %{y:.2f}<extra>%{fullData.name}</extra>",
            }
        )
    layout = {"xaxis": axis("published (%)"), "yaxis": axis("measured (%)"), "height": 460, "showlegend": True}
    return {"data": traces, "layout": layout}


def _ranks(cells: Sequence[Cell]) -> list[str]:
    """'2 → 1': second in the paper, first here."""
    both = [(c.published, c.measured) for c in cells if c.published is not None and c.measured is not None]

    def rank(cell: Cell) -> str:
        if cell.published is None or cell.measured is None:
            return "—"
        ahead = [sum(p > cell.published for p, _ in both), sum(m > cell.measured for _, m in both)]
        return f"{1 + ahead[0]} → {1 + ahead[1]}"

    return [rank(cell) for cell in cells]


def _number(value: float | None, std: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"


def _notes(reproduction: Reproduction) -> list[str]:
    story = reproduction.story
    metrics = "; ".join(sorted({cell.metric for cell in story.cells if cell.metric}))
    agreement = "; ".join(f"{column} {rho:.2f}" for column, rho in story.spearman.items() if rho is not None)
    return [
        *([reproduction.scale] if reproduction.scale else []),
        *([f"Metric: {metrics}."] if metrics else []),
        *([f"Agreement of the orders of methods (Spearman's ρ): {agreement}."] if agreement else []),
        *([f"Left open by the paper, and chosen: {'; '.join(story.choices)}."] if story.choices else []),
    ]
