"""Terminal output: text from files cannot control the terminal, and curves are drawn in braille dots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedtailor.printable import printable

if TYPE_CHECKING:
    from fedtailor.experiment.headline import Headline

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of a braille cell: four rows, two columns


class Terminal(Console):
    """A console that shows text literally: markup is not interpreted, and control characters appear as escapes."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, lines=True), **options)


class PrintableFormatter(logging.Formatter):
    """Log messages without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), lines=True)


def curve(values: Sequence[float], metric: Headline, width: int = 60, height: int = 8) -> str:
    """Draw a line plot of a metric, with its lowest and highest value at the left."""
    import numpy as np  # imported here: the command's help does not need it

    points = np.asarray(values, dtype=float)
    low, high = float(np.nanmin(points)), float(np.nanmax(points))
    high = high if high > low else low + 0.01
    columns, rows = 2 * width, 4 * height
    at = np.interp(np.linspace(0, len(points) - 1, columns), np.arange(len(points)), points)
    level = np.round((high - at) / (high - low) * (rows - 1)).astype(int)
    cells = np.zeros((height, width), dtype=int)
    for column in range(columns):
        before = level[max(column - 1, 0)]
        for row in range(min(before, level[column]), max(before, level[column]) + 1):
            cells[row // 4, column // 2] |= DOTS[row % 4][column % 2]
    labels = [metric.shown(high), *[""] * (height - 2), metric.shown(low)]
    drawn = ["".join(chr(0x2800 + int(bits)) for bits in row) for row in cells]
    return "\n".join(f"{label:>8} ┤{line}" for label, line in zip(labels, drawn, strict=True))
