"""The commands that show runs: `fedtailor show`, `fedtailor report` and `fedtailor watch`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing
from fedtailor.errors import FedTailorError
from fedtailor.printable import printable

if TYPE_CHECKING:
    from fedtailor.report.material import Material


class Format(StrEnum):
    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"


ENDINGS = {".md": Format.md, ".tex": Format.latex, ".csv": Format.csv}

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="run folders, or folders that hold them")]


def show(folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or that of a comparison")]) -> None:
    """Show a finished run's table and curves in the terminal.

    Example: `fedtailor show runs/a`
    """
    with importing():
        from fedtailor.experiment.run_folder import RunFolder
        from fedtailor.report.results import read_results
        from fedtailor.report.tables import comparison_table
        from fedtailor.report.terminal import curve
    results = read_results(folder)
    console.print(comparison_table(results))
    for result in results:
        steps, values = result.curve
        console.print(
            f"\n{result.method}, seed {result.seed}: mean {result.metric.title} of clients, rounds {steps[0]} to {steps[-1]}"
        )
        console.print(curve(values, width=max(20, min(70, console.width - 14)), metric=result.metric))
        if result.state != "finished":
            again = RunFolder(result.path).how_to_resume
            console.print(f"This run is {result.state}. If it is not under way:  {again}", soft_wrap=True)


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
    baseline: Annotated[str, typer.Option(help="compare with this method rather than the best")] = "",
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
    material = load_material(runs, baseline, metric)
    form = form or ENDINGS.get(out.suffix if out else "", Format.html)
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
