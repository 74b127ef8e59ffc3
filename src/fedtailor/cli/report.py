"""The commands that show runs: `fedtailor show`, `fedtailor report` and `fedtailor watch`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing
from fedtailor.errors import FedTailorError
from fedtailor.printable import printable

if TYPE_CHECKING:
    from fedtailor.analysis.results import Result
    from fedtailor.report.material import Material


class Format(StrEnum):
    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"


FEW_CLIENTS = 12  # up to this many are listed without being asked for
ENDINGS = {".md": Format.md, ".tex": Format.latex, ".csv": Format.csv}

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="run folders, or folders that hold them")]


Baseline = Annotated[str, typer.Option(help="method that clients' gains and losses are against (default: local)")]


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or one that holds run folders")],
    clients: Annotated[
        bool | None, typer.Option("--clients/--no-clients", help="list each client (default: up to 12 of them)")
    ] = None,
    baseline: Baseline = "",
) -> None:
    """Show runs in the terminal: the table of methods, each client, and curves.

    Example: `fedtailor show runs/a`

    Runs on different data get a table each. Clients are compared with training alone, if there is a run of `local`.
    """
    with importing():
        from fedtailor.experiment.run_folder import RunFolder
        from fedtailor.report.material import load_material
        from fedtailor.report.sheets import as_rich
        from fedtailor.report.tables import brief_sheet
        from fedtailor.terminal import curve
    material = load_material([folder], baseline)
    if not material.evaluated:
        raise FedTailorError(material.results[0].nothing_to_show)
    for title, runs in material.federations.items():
        results = [r for r in runs if r.evaluated]
        if results:
            several = len(material.federations) > 1
            console.print(as_rich(brief_sheet(results, title if several else "")))
            show_clients(results, baseline, clients)
        for result in results:
            steps, values = result.curve()
            about = f"mean {result.metric.title} of clients, rounds {steps[0]} to {steps[-1]}"
            console.print(f"\n{result.method}, seed {result.seed}: {about}")
            console.print(curve(values, result.metric, width=max(20, min(70, console.width - 14))))
        for result in runs:
            if not result.finished:
                who = "This run" if len(material.results) == 1 else f"The run in '{result.path}'"
                again = f"  Carry on with:  {RunFolder(result.path).how_to_resume}"
                hint = "" if result.state == "running" else again
                console.print(f"{who} is {result.progress}.{hint}", soft_wrap=True)
    for problem in material.unreadable:
        console.print(f"Left out: {problem}", soft_wrap=True)


def show_clients(results: Sequence[Result], baseline: str = "", wanted: bool | None = None) -> None:
    """Print each client under the best method; unless asked for, only if they are few."""
    from fedtailor.analysis.groups import by_method
    from fedtailor.report.clients import all_clients
    from fedtailor.report.sheets import as_rich

    found = all_clients(by_method(results), results[0].metric, baseline)
    if found and (wanted or (wanted is None and len(found[0].names) <= FEW_CLIENTS)):
        console.print(as_rich(found[0].sheet()))


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="file to write (default: report.html in the first folder; tables are printed)"
        ),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="default: as the ending of --out says, else html", show_default=False),
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="compare with this method (default: methods with the best, clients with local)")
    ] = "",
    metric: Annotated[str, typer.Option(help="compare by this metric (default: the one the runs select by)")] = "",
) -> None:
    """Compare runs on one self-contained page, or in a table for a paper.

    Example: `fedtailor report runs/comparison --out report.html`

    The page has tables with tests of significance, curves, every client, labels, fairness and costs; it needs no network.
    `fedtailor report runs/comparison --format latex --baseline fedavg` prints the comparison table alone.
    """
    with importing():
        from fedtailor.report.material import load_material
        from fedtailor.report.page import page
        from fedtailor.report.sections import sections
    form = form or ENDINGS.get(out.suffix if out else "", Format.html)
    console.stderr = True  # a table that is piped into a file holds no warnings
    try:
        material = load_material(runs, baseline, metric)
    finally:
        console.stderr = False
    if form is Format.html:
        given = {"--out": out, "--baseline": baseline, "--metric": metric}
        out = out or runs[0] / "report.html"
        _write(out, page(sections(material, _command("report", runs, given))))
        typer.echo(printable(f"Report: {out}"))
    elif out is None:
        typer.echo(_tables(material, form), nl=False)
    else:
        _write(out, _tables(material, form))
        typer.echo(printable(f"Table: {out}"))


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or one that holds run folders")],
    port: Annotated[int, typer.Option(help="port on this machine (0: any that is free)", min=0, max=65535)] = 0,
) -> None:
    """Show the report of a run in a browser while the run goes on.

    Example: `fedtailor watch runs/a --port 8000`

    The page is for this machine only and keeps itself up to date; Ctrl-C ends the watch, not the run.
    """
    with importing():
        from fedtailor.report.live import HERE, serve
        from fedtailor.report.page import plotly_js
    plotly_js()  # without it, say so before a browser asks
    with serve([run], _command("watch", [run], {"--port": port}), port) as server:
        typer.echo(printable(f"Watching {run} at http://{HERE}:{server.server_port}/  (Ctrl-C ends it)"))
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("Watch ended.")


def _command(name: str, folders: list[Path], options: Mapping[str, object]) -> str:
    """Return the command as a user would type it again."""
    given = [str(word) for option in options.items() if option[1] for word in option]
    return shlex.join(["fedtailor", name, *map(str, folders), *given])


def _tables(material: Material, form: Format) -> str:
    from fedtailor.report.reproduction import column_sheets
    from fedtailor.report.sheets import as_latex, as_markdown
    from fedtailor.report.tables import comparison_numbers, comparison_sheets

    if form is Format.csv:
        return comparison_numbers(material)
    write = as_latex if form is Format.latex else as_markdown
    published = [sheet for found in material.reproductions.values() for sheet in column_sheets(found)]
    return "\n".join(write(sheet) for sheet in [*published, *comparison_sheets(material)])


def _write(path: Path, text: str) -> None:
    from fedtailor.files import Unwritable, replace_text

    try:
        replace_text(path, text)
    except Unwritable as error:
        raise FedTailorError(f"{error} Choose another --out.") from None
