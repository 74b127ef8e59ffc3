"""A run that somebody looks at: live progress, then its table and pictures, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from fedtailor.experiment.config import Config
from fedtailor.experiment.run import Stop, Watch, is_finished, polite_stop, resume, start
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Record
from fedtailor.report.logged import logged_picture
from fedtailor.report.pictures import accuracy_picture
from fedtailor.report.progress import RunProgress
from fedtailor.report.results import read_result
from fedtailor.report.tables import comparison_table
from fedtailor.report.tracking import Tracker, tracking


def run_into(
    config: Config, folder: Path, console: Console, *, quiet: bool = False, track: Tracker | None = None
) -> None:
    _attended(config, folder, partial(start, config, folder), console, quiet, track)


def carry_on(folder: Path, console: Console, *, quiet: bool = False, track: Tracker | None = None) -> None:
    if is_finished(RunFolder.open(folder)):
        if not quiet:
            console.print(f"The run in {folder} is finished already: nothing is left to do.", soft_wrap=True)
        wrap_up(folder, console, quiet=quiet, fresh=False)
        return
    config = Config.load(RunFolder.open(folder).config)
    _attended(config, folder, partial(resume, folder), console, quiet, track)


def _attended(
    config: Config,
    folder: Path,
    work: Callable[[Watch, Stop], object],
    console: Console,
    quiet: bool,
    track: Tracker | None,
) -> None:
    steps = config.settings.rounds + config.method.closing_steps
    progress = RunProgress(console, f"{config.method.name} seed {config.settings.seed}", steps)
    with tracking(track, config, folder) as log, progress, polite_stop(console.print) as stop:

        def watch_round(record: Record) -> None:
            progress.watch(record)
            log(record)

        work(watch_round, stop)
    wrap_up(folder, console, quiet=quiet)


def wrap_up(folder: Path, console: Console, *, quiet: bool = False, fresh: bool = True) -> None:
    """Draw a run's pictures, or if it is not `fresh` those that are missing, and unless it should be quiet show its table."""
    result = read_result(folder)
    if fresh or not (folder / "accuracy.png").exists():
        accuracy_picture([result], folder / "accuracy.png")
    if fresh or not (folder / "logged.png").exists():
        logged_picture(result, folder / "logged.png")
    if result.state == "interrupted":
        console.print(f"Interrupted. Carry on with:  fedtailor run --resume {folder}", soft_wrap=True)
        raise typer.Exit(130)
    if not quiet:
        console.print(comparison_table([result]))
        pictures = [folder / name for name in ("accuracy.png", "labels.png", "logged.png") if (folder / name).exists()]
        console.print(f"Run folder: {folder}\nPictures: {', '.join(map(str, pictures))}", soft_wrap=True)


def new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, runs/NAME-3 … if that is taken."""
    folder, count = Path("runs") / name, 2
    while folder.exists():
        folder, count = Path("runs") / f"{name}-{count}", count + 1
    return folder
