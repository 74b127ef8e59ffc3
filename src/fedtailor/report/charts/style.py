"""What all charts share: colours, axes, names, short numbers."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from textwrap import wrap
from typing import Any

import numpy as np

from fedtailor.data.label_figure import SHADES
from fedtailor.report.pictures import COLOURS
from fedtailor.report.results import Result
from fedtailor.report.sheets import one_line

Chart = dict[str, Any]
Groups = Mapping[str, Sequence[Result]]

DASHES = ("solid", "dash", "dashdot", "dot")
WIDEST_NAME = 24  # letters beside an axis; the whole name appears under the pointer
MOST_COLUMNS = 1000  # of a heat map; of more clients, every so many-th is shown
MOST_TEXTS = 20_000  # cells with a text of their own; more would make the file large


def looks() -> Iterator[tuple[str, str]]:
    """A colour and a dash for each method, in the order of the still pictures."""
    return zip(cycle(COLOURS), cycle(DASHES), strict=False)


def text(value: object) -> str:
    """Words that plotly.js shows as they are: it takes a few HTML tags in any text."""
    return html.escape(one_line(value), quote=False)


def short(name: str) -> str:
    """Variants of a method begin alike and end in what tells them apart, so a long name loses its middle."""
    half = WIDEST_NAME // 2
    return text(name if len(name) <= WIDEST_NAME else f"{name[: half - 1]}…{name[-half:]}")


def in_lines(name: str) -> str:
    """A whole name in lines that leave room for the chart beside a legend."""
    return "<br>".join(text(line) for line in wrap(one_line(name), WIDEST_NAME + 8))


def numbers(values: np.ndarray) -> list[float | None]:
    """Short enough for a small file, fine enough for every eye; null where there is none."""
    return [round(float(v), 2) if np.isfinite(v) else None for v in values]


def axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "automargin": True}


def counting_axis(title: str, last: int) -> dict[str, Any]:
    """Of rounds or clients: where few are shown, no tick stands between two."""
    return axis(title) | {"zeroline": False} | ({"tick0": 0, "dtick": 1} if last <= 12 else {})


def names_axis(names: Sequence[str]) -> dict[str, Any]:
    """From top to bottom by position, since names that were cut short may be equal."""
    ticks = {"tickvals": list(range(len(names))), "ticktext": [short(name) for name in names]}
    return ticks | {"range": [len(names) - 0.5, -0.5], "showgrid": False, "zeroline": False, "automargin": True}


def tall(rows: int, row: int) -> int:
    """The height of a chart with a row for each name: of many, each gets just enough for its letters."""
    return 120 + rows * (row if rows <= 40 else 16)


def heat(
    rows: Sequence[Sequence[float | None]],
    columns: np.ndarray,
    texts: Sequence[Sequence[str]],
    unit: str,
    *,
    power: int,
) -> dict[str, Any]:
    """A heat map in the shades of the label picture; with `power` 2 the shade goes by the root, which keeps small values visible."""
    shades = [f"rgb({','.join(str(round(255 * part)) for part in shade)})" for shade in SHADES]
    return {
        "type": "heatmap",
        "z": rows,
        "x": columns.tolist(),
        "text": texts or None,
        "colorscale": [[(k / (len(shades) - 1)) ** power, shade] for k, shade in enumerate(shades)],
        "colorbar": {"title": {"text": unit}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": ("%{text}" if texts else "client %{x}") + f"<br>%{{z}} {unit}<extra></extra>",
        "hoverongaps": False,
    }


def some_of(count: int) -> np.ndarray:
    """The columns of a heat map: all clients, or evenly chosen ones."""
    return np.arange(0, count, max(1, -(-count // MOST_COLUMNS)))
