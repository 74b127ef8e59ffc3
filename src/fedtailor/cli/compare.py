"""The command `fedtailor compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtailor.cli.arguments import MethodWords, Out, config_file, console, split_methods, typed
from fedtailor.cli.report import show_clients
from fedtailor.cli.starting import importing
from fedtailor.cli.tune import carrying_on, conclude, say_how_to_go_on, say_trial
from fedtailor.errors import FedTailorError


def compare(
    words: MethodWords = None,
    out: Out = None,
    seeds: Annotated[str, typer.Option(help="seeds to repeat each method with, such as 0,1,2")] = "0",
    tune: Annotated[
        int, typer.Option(help="tune each method first with so many trials, on validation samples (0: do not)", min=0)
    ] = 0,
) -> None:
    """Run several methods under one protocol, into one table and one picture.

    Example: `fedtailor compare local fedavg fedrep data=digits rounds=10 --seeds 0,1 --out runs/comparison`

    Arguments without '=' are methods (all options of a part as in `fedtailor run`; `fedrep:head_epochs=5` gives a method its own).
    The same command with the same --out resumes an interrupted comparison. With `--tune 12`, each method's settings are searched
    first, as `fedtailor tune` does with the first seed. `attack=scaled attack.share=0.2 robust=trimmed` compares them with hostile clients.
    """
    with importing():
        from fedtailor.api.plan import USUAL, plan
        from fedtailor.api.run import new_folder
        from fedtailor.api.study import carry_out_all
        from fedtailor.api.tune import tune_all
        from fedtailor.experiment.config import overridden
        from fedtailor.experiment.progress import Progress
        from fedtailor.report.data_summary import DataSummary
        from fedtailor.report.sheets import as_rich
        from fedtailor.report.tables import brief_sheet
        from fedtailor.tuning.tune import TUNING
    named, given = split_methods(words)
    methods, values, numbers = named or list(USUAL), overridden(*config_file(given)), _seeds(seeds)
    folder = out or new_folder("comparison")
    chosen = {}
    if tune:
        with carrying_on(out, folder):
            tuned = tune_all(
                {**values, "seed": numbers[0]},
                methods,
                tune,
                folder / TUNING,
                callbacks=[Progress(console)],
                on_trial=say_trial,
            )
        conclude(tuned, folder / TUNING)
        chosen = {name: found.values for name, found in tuned.items()}
    plans = plan(values, methods, numbers, folder, chosen)
    study = carry_out_all(plans, folder, callbacks=[DataSummary(console), Progress(console)], command=typed())
    if study.state != "finished":
        say_how_to_go_on(out, folder)
        raise typer.Exit(130)
    console.print(as_rich(brief_sheet(study.results)))
    show_clients(study.results)
    pictures = [folder / name for name in ("accuracy.png", "clients.png") if (folder / name).exists()]
    drawn = f"Pictures: {', '.join(map(str, pictures))}\n" if pictures else ""
    console.print(f"Table: {folder / 'table.csv'}\n{drawn}Runs: {folder}/*", soft_wrap=True)


def _seeds(text: str) -> list[int]:
    try:
        return [int(s) for s in text.split(",")]
    except ValueError:
        raise FedTailorError(f"--seeds {text!r} is not a list of whole numbers such as 0,1,2.") from None
