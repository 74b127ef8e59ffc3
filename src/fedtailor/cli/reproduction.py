"""Reproduce one table or figure of a paper, from its preset to the measured numbers beside the published ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedtailor.cli.jobs import estimated, run_all, say_time
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.extras import can_draw
from fedtailor.files import make_folder
from fedtailor.papers.comparison import Comparison, comparison_of
from fedtailor.papers.grid import RunGrid, slug
from fedtailor.papers.presets import Preset, find
from fedtailor.papers.reproduction import FULL
from fedtailor.papers.scale import Scale
from fedtailor.report.reproduction import column_sheets, write_tables
from fedtailor.report.sheets import as_rich


@dataclass(frozen=True)
class PlannedReproduction:
    """A preset at a scale, in its folder."""

    preset: Preset
    scale: str
    grid: RunGrid

    @classmethod
    def plan(cls, name: str, scale: str, words: list[str], out: Path | None) -> PlannedReproduction:
        whole = find(name)
        asked = Scale.parse(scale, whole)
        for word in words:
            if "=" not in word or word.startswith("seed="):
                raise FedTailorError(
                    f"'{word}' is no override of the runs: expected key=value, such as device=cuda "
                    "(seeds: --scale seeds=2)."
                )
        asked = replace(asked, over=tuple(words))
        preset = asked.shrunk(whole)
        folder = out or Path("runs") / "-".join(
            filter(None, (slug(name), slug(" ".join((*asked.overrides, *asked.over)))))
        )
        grid = RunGrid(preset, folder)
        for job in grid.jobs[:: preset.seeds]:
            Config.load(words=job.overrides)  # an invalid override is reported now, not by every run
        return cls(preset, asked.description(whole), grid)

    def show_plan(self, console: Console) -> None:
        """Print every run with its overrides, one line each."""
        for job in self.grid.jobs:
            console.print(Text(f"{job.name}: {' '.join(job.overrides)}"), soft_wrap=True)
        console.print(Text(f"{len(self.preset.cells)} cells from {len(self.grid.jobs)} runs. {self.scale_line}"))

    @property
    def scale_line(self) -> str:
        return f"Scale: {self.scale or FULL}."

    def carry_out(self, console: Console, workers: int) -> Comparison | None:
        """Estimate the time, carry out unfinished runs, and compare; return None if interrupted."""
        self.grid.check()
        make_folder(self.grid.out)  # fails before anything is measured if it cannot be written
        console.print(Text(f"{self.preset.name}: {self.preset.title}"), style="bold")
        console.print(Text(f"{len(self.preset.cells)} cells from {len(self.grid.jobs)} runs. {self.scale_line}"))
        expected = estimated(console, self.grid.jobs)
        say_time(console, expected, workers)
        progress = run_all(console, self.grid.jobs, workers, expected)
        if progress is None:
            return None
        gaps = {name: self._with_hint(reason) for name, reason in progress.gaps.items()}
        comparison = comparison_of(self.grid, self.scale, gaps)
        write_tables(comparison, self.grid.out)
        return comparison

    def draw(self, comparison: Comparison) -> list[str]:
        """Draw the figures that belong to the preset; return their file names."""
        if not can_draw():
            return []
        from fedtailor.report.figures import draw_figures

        return [path.name for path in draw_figures(comparison, self.grid.out)]

    @staticmethod
    def show(comparison: Comparison, console: Console) -> None:
        for sheet in column_sheets(comparison.reproduction):
            console.print(as_rich(sheet))
        for reason, where in comparison.reproduction.gaps.items():
            console.print(Text(f"Gap: {', '.join(where)}\n  {reason}", style="yellow"))

    def _with_hint(self, reason: str) -> str:
        return " ".join([reason, *(text for name, text in self.preset.hints.items() if name in reason)])
