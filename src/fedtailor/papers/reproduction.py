"""A reproduced table as reproduction.json holds it: the published numbers beside the measured ones, and the ranks of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from fedtailor.errors import FedTailorError
from fedtailor.papers.measures import MEASURES

FILE = "reproduction.json"
FULL = "full: the paper's own protocol"
FEWEST = 3  # rows for a rank correlation

Ranks = tuple[int | None, int | None]  # measured, published


class ReproducedCell(BaseModel):
    """One published number and the measured one; `gap` tells why a measured one is missing."""

    method: str
    column: str
    published: float | None = None
    published_std: float | None = None
    published_text: str = ""
    measured: float | None = None
    measured_std: float | None = None
    seeds: int = 0
    measure: str = ""
    metric: str = ""
    runs: list[str] = []
    gap: str = ""

    @property
    def lower_is_better(self) -> bool:
        """Whether lower is better by this measure; the oldest files name the measure by its title alone."""
        titles = {m.title: m for m in MEASURES.values()}
        by_title = titles.get(self.metric) or titles.get(self.metric.replace(" a round", " per round"))
        measure = MEASURES.get(self.measure) or by_title
        return measure is not None and measure.lower_is_better

    @property
    def difference(self) -> float | None:
        return None if self.measured is None or self.published is None else self.measured - self.published


class Reproduction(BaseModel):
    """A whole table or figure; `scale` describes what was scaled down."""

    preset: str
    title: str
    scale: str = ""
    choices: list[str] = []
    cells: list[ReproducedCell]
    spearman: dict[str, float | None] = {}

    @classmethod
    def read(cls, folder: Path) -> Reproduction:
        try:
            return cls.model_validate_json((folder / FILE).read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise FedTailorError(f"'{folder / FILE}' is not a reproduction: {where}: {first['msg']}.") from None

    @property
    def scale_note(self) -> str:
        """The note to show beside every number; empty if nothing was scaled down."""
        text = self.scale.strip().rstrip(".")
        return f"Reproduction of {self.preset}, scaled down: {text}." if text else ""

    @property
    def columns(self) -> dict[str, list[ReproducedCell]]:
        columns: dict[str, list[ReproducedCell]] = {}
        for cell in self.cells:
            columns.setdefault(cell.column, []).append(cell)
        return columns

    @property
    def gaps(self) -> dict[str, list[str]]:
        """Each reason for a gap, with the columns (or cells) that it leaves empty."""
        found: dict[str, list[str]] = {}
        for column, cells in self.columns.items():
            for gap in dict.fromkeys(cell.gap for cell in cells if cell.gap):
                whole = all(cell.gap == gap for cell in cells)
                open_cells = [f"{cell.method} on {column}" for cell in cells if cell.gap == gap]
                found.setdefault(gap, []).extend([column] if whole else open_cells)
        return found


def ranks(cells: Sequence[ReproducedCell]) -> list[Ranks]:
    """Rank the measured and the published numbers of a column, the best being 1, among the rows that have both.

    Where nothing is published, the measured numbers are ranked alone.
    """
    both = [cell for cell in cells if cell.difference is not None]
    measured = both or [cell for cell in cells if cell.measured is not None]

    def rank(cell: ReproducedCell, side: str, among: Sequence[ReproducedCell]) -> int | None:
        if cell not in among:
            return None
        sign = 1 if cell.lower_is_better else -1
        return 1 + sum(sign * getattr(other, side) < sign * getattr(cell, side) for other in among)

    return [(rank(cell, "measured", measured), rank(cell, "published", both)) for cell in cells]


def rank_correlation(cells: Sequence[ReproducedCell]) -> float | None:
    """Return Spearman's correlation of measured and published numbers; None if there are too few or all are equal."""
    both = np.array([[c.measured, c.published] for c in cells if c.difference is not None], dtype=float)
    if len(both) < FEWEST or (np.ptp(both, axis=0) == 0).any():
        return None
    from scipy import stats  # slow to import

    return round(float(stats.spearmanr(both).statistic), 4)
