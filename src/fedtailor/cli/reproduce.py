"""The command `fedtailor reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="PAPER/TABLE", help="such as pgfedsplit/table2, heart/fig6 or flamby/heart")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value …]", help="applied to every run, such as device=cuda")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="full (the paper's own), small, smoke, or wishes such as fraction=0.05,rounds=20,seeds=2"),
    ] = "full",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="folder for runs, tables and figures")] = None,
    workers: Annotated[int, typer.Option(min=1, help="runs at a time, each a process of its own")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list the runs with all their overrides")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="list all tables and figures")] = False,
) -> None:
    """Run a table or figure of one of the five papers, or of a benchmark, and show measured numbers beside the published ones.

    Example: `fedtailor reproduce pgfedsplit/table2 --scale fraction=0.05,rounds=20,seeds=1,methods=local+fedavg+fedrep,columns=1+2`

    The scale is full by default, which may take weeks: the time is estimated and shown first. The same command given again resumes
    where it was interrupted. Every output says what was scaled down.
    """
    with importing():
        from fedtailor.cli.reproduction import PlannedReproduction
        from fedtailor.report.reproduction import listing
    if show_list or name is None:
        console.print(listing())
        return
    reproduction = PlannedReproduction.plan(name, scale, words or [], out)
    if dry_run:
        reproduction.show_plan(console)
        return
    comparison = reproduction.carry_out(console, workers)
    if comparison is None:
        console.print("Interrupted. The same command carries on.")
        raise typer.Exit(130)
    reproduction.show(comparison, console)
    made = ["table.md", "table.csv", "reproduction.json", *reproduction.draw(comparison)]
    console.print(f"In {reproduction.grid.out}: {', '.join(made)}", soft_wrap=True)
    console.print("table.md also lists what the paper leaves open and was chosen here.")
