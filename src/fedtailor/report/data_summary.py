"""How the data was read: one line per column of a table, and what was left out or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from fedtailor.data.description import Column, Description
from fedtailor.experiment.callbacks import Callback
from fedtailor.report.sheets import Sheet, as_rich
from fedtailor.terminal import Terminal

if TYPE_CHECKING:
    from fedtailor.data.federation import Federation
    from fedtailor.experiment.simulation import Simulation

MOST = 15  # columns shown in the terminal
VALUES = 6  # values shown of a category


class DataSummary(Callback):
    """Print how the data was read, once, before the first round."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal(stderr=True)
        self._shown = False

    def on_start(self, simulation: Simulation) -> None:
        if simulation.metrics or self._shown:
            return
        self._shown = True
        if simulation.federation.description.columns:
            self.console.print(as_rich(columns_sheet(simulation.federation.description, MOST)))
        for note in notes_of(simulation.federation):
            self.console.print(f"  {note}", soft_wrap=True)


def columns_sheet(description: Description, most: int = 10**9) -> Sheet:
    """Return one row per column; beyond `most`, only how many more there are."""
    rows: list[tuple[str, ...]] = [
        (column.name, column.kind, values_of(column)) for column in description.columns[:most]
    ]
    if (more := len(description.columns) - most) > 0:
        rows.append((f"and {more} more", "", "all of them are in description.json"))
    title = f"Columns to predict '{description.label}' from"
    return Sheet(title, ("column", "read as", "values"), rows, left=3)


def values_of(column: Column) -> str:
    """Describe the values of a column in a few words."""
    if column.kind == "number":
        missing = "; missing values are marked" if column.indicator else ""
        return f"mean {_short(column.mean)}, std {_short(column.std)}{missing}"
    shown = ", ".join(column.values[:VALUES])
    return f"{len(column.values)}: {shown}{' …' if len(column.values) > VALUES else ''}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def notes_of(federation: Federation) -> list[str]:
    """Return what was left out or changed when the data was read, and which clients cannot be scored."""
    unscored = [client.name for client in federation.clients if not len(client.test)]
    if not unscored:
        return list(federation.description.notes)
    some = ", ".join(unscored[:5]) + (" …" if len(unscored) > 5 else "")
    note = f"{len(unscored)} of {len(federation.clients)} clients have no test samples and are not scored: {some}."
    return [*federation.description.notes, note]
