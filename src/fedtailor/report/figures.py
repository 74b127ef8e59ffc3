"""The figures that a preset asks for, drawn from its runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from fedtailor.experiment.config import Config
from fedtailor.files import replacing
from fedtailor.papers.comparison import Comparison
from fedtailor.report.bars import ablation_figure, by_label_figure
from fedtailor.report.curves import curves_and_end_figure, curves_figure, schedule_figure
from fedtailor.report.reproduction import FULL
from fedtailor.report.similarity import similarity_figure
from fedtailor.report.stages import stages_figure
from fedtailor.report.surface import surface_figure


def labels_alike_figure(comparison: Comparison) -> Figure | None:
    """How alike the clients' labels are, in the partition that the runs share."""
    preset = comparison.preset
    paths = comparison.folders(preset.rows[0], preset.columns[0])
    return similarity_figure(Config.load(paths[0] / "config.toml").federation().label_counts) if paths else None


FIGURES: dict[str, Callable[[Comparison], Figure | None]] = {
    "curves": curves_figure,
    "curves-and-end": curves_and_end_figure,
    "schedule": schedule_figure,
    "by-label": by_label_figure,
    "ablation": ablation_figure,
    "stages": stages_figure,
    "surface": surface_figure,
    "similarity": labels_alike_figure,
}


def draw_figures(comparison: Comparison, out: Path) -> list[Path]:
    """Each as PNG and SVG with the scale below it; one whose runs are all missing is left out."""
    drawn = []
    for name in comparison.preset.figures:
        figure = FIGURES[name](comparison)
        if figure is not None:
            said = f"{comparison.preset.name}. Scale: {comparison.scale or FULL}."
            lines = textwrap.wrap(said, int(16 * figure.get_figwidth()), break_on_hyphens=False)
            figure.supxlabel("\n".join(lines), fontsize=8, color="#555555")
            for suffix in ("png", "svg"):
                drawn.append(out / f"{name}.{suffix}")
                with replacing(drawn[-1]) as draft:
                    figure.savefig(draft, dpi=150)
    return drawn
