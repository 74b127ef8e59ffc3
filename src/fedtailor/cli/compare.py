"""The command `fedtailor compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtailor.cli.arguments import Out, Words, config_file, console, typed
from fedtailor.cli.report import show_clients
from fedtailor.cli.starting import importing
from fedtailor.errors import FedTailorError


def compare(
    words: Words = None,
    out: Out = None,
    seeds: Annotated[str, typer.Option(help="seeds to repeat each method with, such as 0,1,2")] = "0",
) -> None:
    """Run several methods under one protocol, into one table and one picture.

    Example: `fedtailor compare local fedavg fedrep data=digits rounds=10 --seeds 0,1 --out runs/comparison`

    Words without '=' are methods (all options of a part as in `fedtailor run`; `fedrep:head_epochs=5` gives a method its own).
    The same command with the same --out resumes an interrupted comparison.
    """
    with importing():
        from fedtailor.api.run import new_folder
        from fedtailor.api.study import USUAL, carry_out_all, plan
        from fedtailor.experiment.config import overridden
        from fedtailor.report.data_summary import DataSummary
        from fedtailor.report.progress import Progress
        from fedtailor.report.tables import comparison_table
    is_method = {w: "=" not in w.partition(":")[0] and not w.endswith(".toml") for w in words or []}
    values = overridden(*config_file([w for w in words or [] if not is_method[w]]))
    folder = out or new_folder("comparison")
    plans = plan(values, [w for w in words or [] if is_method[w]] or USUAL, _seeds(seeds), folder)
    study = carry_out_all(plans, folder, callbacks=[DataSummary(console), Progress(console)], command=typed())
    if study.state != "finished":
        again = "The same command carries on." if out else f"The same command with --out {folder} carries on."
        console.print(f"Interrupted. {again}", soft_wrap=True)
        raise typer.Exit(130)
    console.print(comparison_table(study.results))
    show_clients(study.results)
    pictures = [folder / name for name in ("accuracy.png", "clients.png") if (folder / name).exists()]
    files = f"Table: {folder / 'table.csv'}\nPictures: {', '.join(map(str, pictures))}\nRuns: {folder}/*"
    console.print(files, soft_wrap=True)


def _seeds(text: str) -> list[int]:
    try:
        return [int(s) for s in text.split(",")]
    except ValueError:
        raise FedTailorError(f"--seeds {text!r} is not a list of whole numbers such as 0,1,2.") from None
