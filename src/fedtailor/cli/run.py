"""The command `fedtailor run`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.arguments import Out, Words, config_file, console, typed
from fedtailor.cli.starting import importing
from fedtailor.errors import FedTailorError

if TYPE_CHECKING:
    from fedtailor.api.run import Run


class Tracker(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"


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

    `fedtailor options` lists the keys with their meanings and defaults. Options of the parts have dotted keys, such as
    `method.head_epochs=5 partition.beta=0.1 net.hidden=64 data.fraction=0.2`: `fedtailor methods NAME` (datasets, partitions, nets).
    `fedtailor run study.toml seed=1` applies overrides to a config file; a run folder's own config.toml runs again as it is.
    The same command with the same --out carries on a run that was interrupted, as does --resume.
    """
    with importing():
        from fedtailor.api.run import Run, new_folder
        from fedtailor.experiment.config import Config
        from fedtailor.experiment.progress import Progress
        from fedtailor.experiment.tracking import Tracking
        from fedtailor.report.data_summary import DataSummary
    if resume_from is not None and (words or out is not None):
        raise FedTailorError("--resume takes the run's own config and folder: give no overrides and no --out with it.")
    callbacks = [DataSummary(console), Progress(console), *([Tracking(track.value)] if track else [])]
    if resume_from is not None:
        opened = Run.open(resume_from)
        config = opened.config
    else:
        config = Config.load(*config_file(words or []))
        name = f"{config.method.name}-{config.data.name}-s{config.settings.seed}"
        opened = Run(out or new_folder(name))
    if opened.carry_out(config, callbacks, typed()).nothing_left:
        console.print(f"The run in {opened.path} is finished already: nothing is left to do.", soft_wrap=True)
    conclude(opened)


def conclude(run: Run) -> None:
    """Show a run's table and where its files are; an interrupted run ends the command and says how to resume."""
    from fedtailor.report.sheets import as_rich
    from fedtailor.report.tables import brief_sheet

    if run.state == "interrupted":
        console.print(f"Interrupted. Carry on with:  {run.folder.how_to_resume}", soft_wrap=True)
        raise typer.Exit(130)
    if any(record["loss"] is not None for record in run.metrics):
        console.print(as_rich(brief_sheet(run.results)))
    else:
        console.print(
            "No scores: the run's privacy rules keep them at the sites (privacy.scores=plain lets them leave)."
        )
    pictures = [run.path / name for name in ("accuracy.png", "labels.png", "logged.png") if (run.path / name).exists()]
    drawn = f"\nPictures: {', '.join(map(str, pictures))}" if pictures else ""
    console.print(f"Run folder: {run.path}{drawn}", soft_wrap=True)
