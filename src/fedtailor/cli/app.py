"""The command `fedtailor`."""

from __future__ import annotations

import errno
import logging
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler

from fedtailor import __version__
from fedtailor.cli.attended import carry_on, new_folder, run_into
from fedtailor.cli.catalogue import describe, overview
from fedtailor.cli.deploy import app as deploy_app
from fedtailor.cli.report import report, watch
from fedtailor.cli.reproduce import Study
from fedtailor.cli.reproduce import show as show_comparison
from fedtailor.data.download import get as download
from fedtailor.data.partition import partitions
from fedtailor.data.pool import data_root, sources
from fedtailor.engines.base import save_module
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config, method_overrides
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.onboarding import data_words, finished_simulation, read_newcomer
from fedtailor.experiment.onboarding import onboard as join_late
from fedtailor.experiment.pretrain import plan, pretrain
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.files import replace_text
from fedtailor.methods import methods
from fedtailor.nets import nets
from fedtailor.printable import printable
from fedtailor.registry import Registry
from fedtailor.report.pictures import accuracy_picture
from fedtailor.report.progress import download_progress
from fedtailor.report.reproduction import listing
from fedtailor.report.results import read_result, read_results
from fedtailor.report.tables import comparison_csv, comparison_table
from fedtailor.report.terminal import PrintableFormatter, Terminal, curve
from fedtailor.report.tracking import Tracker

app = typer.Typer(
    help="Personalized federated learning: every client ends with a model cut to fit it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Fetch data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
console = Terminal()

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)  # not a bug of ours

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value …]", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="folder for the results (default: a new one below runs/)")]
Name = Annotated[str | None, typer.Argument(help="show this one in full", show_default=False)]


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedtailor {__version__} (PyTorch {version('torch')})")
        raise typer.Exit


@app.callback()
def fedtailor(
    asked: Annotated[
        bool, typer.Option("--version", help="say which version this is", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def run(
    words: Words = None,
    out: Out = None,
    resume_from: Annotated[
        Path | None, typer.Option("--resume", help="carry on the interrupted run in this folder")
    ] = None,
    track: Annotated[
        Tracker | None, typer.Option(help="log to TensorBoard or MLflow too, below the run folder (extra 'track')")
    ] = None,
) -> None:
    """Run one experiment.

    Example: `fedtailor run method=fedrep data=digits clients=20 rounds=5 seed=0 --out runs/a`

    Options of the parts have dotted keys: `method.head_epochs=5 partition.beta=0.1 net.hidden=64 data.fraction=0.2`.
    `fedtailor run study.toml seed=1` lays words over a config file; a run folder's own config.toml runs again as it is.
    """
    if resume_from is not None:
        if words or out is not None:
            raise FedTailorError(
                "--resume takes the run's own config and folder: give no other words and no --out with it."
            )
        carry_on(resume_from, console, track=track)
        return
    config = Config.load(*_split(words or []))
    folder = out or new_folder(f"{config.method.name}-{config.data.name}-s{config.settings.seed}")
    run_into(config, folder, console, track=track)


@app.command()
def compare(
    words: Words = None,
    out: Out = None,
    seeds: Annotated[str, typer.Option(help="seeds to repeat each method with, such as 0,1,2")] = "0",
) -> None:
    """Run several methods under one protocol, into one table and one picture.

    Example: `fedtailor compare local fedavg fedrep data=digits rounds=10 --seeds 0,1 --out runs/comparison`

    Words without '=' are methods (all options of a part as in `fedtailor run`; `fedrep:head_epochs=5` gives a method its own).
    A comparison that was interrupted goes on where it stopped when the same command is given again.
    """
    is_method = {w: "=" not in w.partition(":")[0] and not w.endswith(".toml") for w in words or []}
    path, keys = _split([w for w in words or [] if not is_method[w]])
    names = [w for w in words or [] if is_method[w]] or ["local", "fedavg", "fedper", "fedrep"]
    folder = out or new_folder("comparison")
    cells = [(name, seed) for name in names for seed in _seeds(seeds)]
    plans = [
        (folder / f"{_cell_name(name)}-s{seed}", Config.load(path, [*keys, *method_overrides(name), f"seed={seed}"]))
        for name, seed in cells
    ]
    for cell, config in plans:
        if not (cell / "config.toml").exists():
            run_into(config, cell, console, quiet=True)
        elif Config.load(cell / "config.toml").values() != config.values():
            raise FedTailorError(f"'{cell}' holds a run with other settings. Choose another --out.")
        elif RunFolder(cell).state != "finished":
            carry_on(cell, console, quiet=True)
    results = [read_result(cell) for cell, _ in plans]
    accuracy_picture(results, folder / "accuracy.png")
    replace_text(folder / "table.csv", comparison_csv(results))
    console.print(comparison_table(results))
    console.print(
        f"Table: {folder / 'table.csv'}\nPicture: {folder / 'accuracy.png'}\nRuns: {folder}/*", soft_wrap=True
    )


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="PAPER/TABLE", help="such as pgfedsplit/table2 or heart/fig6")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value …]", help="laid over every run, such as device=cuda")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="full (the paper's own), small, smoke, or wishes such as fraction=0.05,rounds=20,seeds=2"),
    ] = "full",
    out: Annotated[Path | None, typer.Option("--out", help="folder for runs, tables and figures")] = None,
    workers: Annotated[int, typer.Option(min=1, help="runs at a time, each a process of its own")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list the runs with all their words")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="list all tables and figures")] = False,
) -> None:
    """Run a table or figure of one of the five papers, and show measured numbers beside the published ones.

    Example: `fedtailor reproduce pgfedsplit/table2 --scale fraction=0.05,rounds=20,seeds=1,methods=local+fedavg+fedrep,columns=1+2`

    The scale is full by default, which may take weeks: the time is measured and told first. The same command given again goes on
    where it was interrupted. Every output says what was shrunk.
    """
    if show_list or name is None:
        console.print(listing())
        return
    study = Study.plan(name, scale, words or [], out)
    if dry_run:
        study.show_plan(console)
        return
    comparison = study.carry_out(console, workers)
    if comparison is None:
        console.print("Interrupted. The same command carries on.")
        raise typer.Exit(130)
    show_comparison(comparison, console)
    made = ["table.md", "table.csv", "reproduction.json", *study.draw(comparison)]
    console.print(f"In {study.grid.out}: {', '.join(made)}", soft_wrap=True)
    console.print("table.md also lists what the paper leaves open and was chosen here.")


@app.command("pretrain")
def pretrain_net(
    out: Annotated[Path, typer.Option("--out", help="file for the weights, such as backbone.safetensors")],
    words: Words = None,
) -> None:
    """Train a net on a whole data set in one place, for runs to start from.

    Example: `fedtailor pretrain net=resnet18 data=cifar10 epochs=5 --out backbone.safetensors`

    Then `fedtailor run net=resnet18-adapters net.weights=backbone.safetensors …` starts from it, and its versions.json says so.
    """
    config = plan(words or [])

    def watch(epoch: int, loss: float, accuracy: float) -> None:
        console.print(f"epoch {epoch}/{config.settings.epochs}: loss {loss:.3f}, test accuracy {100 * accuracy:.2f} %")

    pretrain(config, out, watch)
    console.print(f"Weights: {out}", soft_wrap=True)


@app.command()
def show(folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or that of a comparison")]) -> None:
    """Show a finished run's table and curves in the terminal.

    Example: `fedtailor show runs/a`
    """
    results = read_results(folder)
    console.print(comparison_table(results))
    for result in results:
        steps, values = result.curve
        console.print(
            f"\n{result.method}, seed {result.seed}: mean {result.headline.name} of clients, rounds {steps[0]} to {steps[-1]}"
        )
        console.print(curve(values, width=max(20, min(70, console.width - 14)), headline=result.headline))
        if result.state != "finished":
            console.print(f"This run is {result.state}. If it is not under way:  fedtailor run --resume {result.path}")


app.command()(report)
app.command()(watch)


@app.command()
def onboard(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    words: Annotated[
        list[str] | None, typer.Argument(help="data=… data.path=… and other words on the new client's data")
    ] = None,
    data: Annotated[
        str, typer.Option("--data", help="data set, or a .csv, .parquet or .npz file, or a folder of images")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="file for the new client's model")] = Path("newcomer.safetensors"),
) -> None:
    """Give a client that joins after training its personal model, by the method's rule for new clients.

    Example: `fedtailor onboard runs/a --data newcomer.npz --out newcomer.safetensors`
    """
    simulation = finished_simulation(run)
    newcomer = join_late(simulation, read_newcomer(run, [*data_words(data), *(words or [])]))
    save_module(newcomer.model, out)
    console.print(f"A new client of {simulation.method.name} {simulation.method.new_client}.")
    if newcomer.after.total:
        headline = Headline(simulation.worker.metrics[0].name)
        after, before = (headline.written(s.value(headline.name)) for s in (newcomer.after, newcomer.before))
        console.print(
            f"{headline.name.capitalize()} on its {newcomer.after.total} test samples: {after} (before it trained: {before})"
        )
    console.print(f"Model: {out}", soft_wrap=True)


@app.command("methods")
def show_methods(name: Name = None) -> None:
    """List the methods, or one with its options, what travels and what the client keeps.

    Example: `fedtailor methods fedrep`
    """
    _list(methods, name)


@app.command("datasets")
def show_datasets(name: Name = None) -> None:
    """List the data sets, or one with its options.

    Example: `fedtailor datasets agnews`
    """
    _list(sources, name)


@app.command("nets")
def show_nets(name: Name = None) -> None:
    """List the networks, or one with its options.

    Example: `fedtailor nets resnet18`
    """
    _list(nets, name)


@app.command("partitions")
def show_partitions(name: Name = None) -> None:
    """List the ways to deal data to clients, or one with its options.

    Example: `fedtailor partitions dirichlet`
    """
    _list(partitions, name)


@data_app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="name of the data set, as in `fedtailor datasets`")],
    root: Annotated[str, typer.Option(help="folder that holds data sets")] = "",
    base_url: Annotated[
        str | None, typer.Option(help="fetch the files from a mirror instead of the official address")
    ] = None,
) -> None:
    """Download a data set from its official address, with checksum and resume.

    Example: `fedtailor data get fashion-mnist`
    """
    with download_progress(console) as progress:
        folder = download(name, data_root(root), base_url=base_url, progress=progress)
    console.print(f"{name} is in {folder}", soft_wrap=True)


def _list(registry: Registry, name: str | None) -> None:
    console.print(overview(registry) if name is None else describe(registry, name))


def _split(words: list[str]) -> tuple[Path | None, list[str]]:
    """An optional config file first, then key=value words."""
    if words and words[0].endswith(".toml"):
        return Path(words[0]), words[1:]
    return None, words


def _cell_name(name: str) -> str:
    method, _, options = name.partition(":")
    method = Path(method).stem if method.endswith(".py") else method
    return "-".join(re.findall(r"[\w.+-]+", f"{method} {options}"))


def _seeds(text: str) -> list[int]:
    try:
        return [int(s) for s in text.split(",")]
    except ValueError:
        raise FedTailorError(f"--seeds {text!r} is not a list of whole numbers such as 0,1,2.") from None


def main() -> None:
    """Entry point: a user's mistake is told in words, never as a traceback."""
    handler = RichHandler(console=console, show_path=False, show_time=False)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        app()
    except FedTailorError as error:
        Terminal(stderr=True).print("Error: ", style="bold red", end="")
        print(printable(error, lines=True), file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK:
            raise
        print(f"Error: {error.filename or 'A file'} cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
