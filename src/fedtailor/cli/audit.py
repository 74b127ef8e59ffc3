"""The command `fedtailor audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing

if TYPE_CHECKING:
    from fedtailor.auditing.measurements import Measured


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    minutes: Annotated[float, typer.Option(help="how long to attack, about", min=0.0)] = 5.0,
) -> None:
    """Measure what leaks from a run: whether samples, labels or membership can be inferred from what is sent, and a lower bound on ε.

    Example: `fedtailor audit runs/a --minutes 5`

    The attacks are on your own run, in simulation, and need its data again. The table, a page to hand to whoever has to sign, and the best
    reconstructions are written into the run's folder: audit.json, audit.md, audit.png. The same command goes on with what the time
    did not allow. A failed attack is no proof of safety.
    """
    with importing():
        from fedtailor.api.audit import audit as measure
        from fedtailor.report.audit import PAGE, PICTURE, gaps, short_sheet, summary
        from fedtailor.report.sheets import as_rich
    with console.status("Reading the run and its data") as status:

        def say(name: str, measured: Measured | None) -> None:
            status.update(name)
            if measured is not None and measured.finding is not None:
                console.print(f"{name}: {measured.finding.verdict}", soft_wrap=True)

        found = measure(run, minutes=minutes, on_unit=say)
    console.print(as_rich(short_sheet(found)))
    for line in summary(found):
        console.print(f"- {line}", soft_wrap=True)
    console.print("A failed attack is no proof of safety. Not measured:", soft_wrap=True)
    for line in gaps(found):
        console.print(f"- {line}", soft_wrap=True)
    console.print(f"Page: {found.path / PAGE}", soft_wrap=True)
    if (found.path / PICTURE).exists():
        console.print(f"Picture (holds training samples): {found.path / PICTURE}", soft_wrap=True)
