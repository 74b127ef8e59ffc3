"""The command `fedtailor tune`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.arguments import MethodWords, Out, config_file, console, split_methods
from fedtailor.cli.starting import importing

if TYPE_CHECKING:
    from fedtailor.tuning.trials import Trial
    from fedtailor.tuning.tune import Tuned


def tune(
    words: MethodWords = None,
    out: Out = None,
    budget: Annotated[int, typer.Option(help="trials per method", min=1)] = 12,
) -> None:
    """Search the settings of methods with the same number of trials each, judged on validation samples.

    Example: `fedtailor tune fedavg-ft fedrep ditto data=digits partition.beta=0.1 rounds=20 --budget 12 --out runs/tuned`

    What is given (`lr=0.1`, `fedrep:head_epochs=5`) stays; what else a method declares is searched: learning rate, optimizer, server
    optimizer and its own options (`fedtailor methods NAME` lists them). 20 % of each client's training samples are held out to judge by
    (validation=0.3 changes that); test samples have no say. The same command with the same --out goes on, also with a larger --budget.
    """
    with importing():
        from fedtailor.api.plan import USUAL
        from fedtailor.api.run import new_folder
        from fedtailor.api.tune import tune_all
        from fedtailor.experiment.config import method_overrides, overridden
        from fedtailor.experiment.progress import Progress
        from fedtailor.tuning.tune import TUNING
    methods, given = split_methods(words)
    methods, values = methods or list(USUAL), overridden(*config_file(given))
    folder = out or new_folder(TUNING)
    with carrying_on(out, folder):
        tuned = tune_all(values, methods, budget, folder, callbacks=[Progress(console)], on_trial=say_trial)
    conclude(tuned, folder)
    console.print("Run the chosen settings on all training samples with:")
    for method, found in zip(methods, tuned.values(), strict=True):
        options = [f"{key}={value}" for key, value in found.values.items()]
        command = shlex.join(["fedtailor", "run", *method_overrides(method), *given, *options])
        console.print(f"  {command}", soft_wrap=True)


def conclude(tuned: dict[str, Tuned], folder: Path) -> None:
    """Show what was chosen, and draw how much the learning rate matters."""
    from fedtailor.extras import can_draw
    from fedtailor.report.sheets import as_rich
    from fedtailor.report.tuning import sensitivity_picture, settings, tuning_sheet

    trials = {name: found.trials for name, found in tuned.items()}
    console.print(as_rich(tuning_sheet(trials, with_settings=False)))
    for name, found in tuned.items():
        console.print(f"{name}: {settings(found.best)}", soft_wrap=True)
    if can_draw() and sensitivity_picture(trials, folder / "sensitivity.png"):
        console.print(f"Picture: {folder / 'sensitivity.png'}", soft_wrap=True)


def say_trial(method: str, trial: Trial, best: Trial | None) -> None:
    """Say how a trial ended, and which is the best so far."""
    from fedtailor.report.tuning import metric_of, settings

    metric = metric_of([trial])
    ended = f"{metric.title} {metric.shown(trial.score)}" if trial.score is not None else trial.state
    so_far = f"; best {metric.shown(best.score)} (trial {best.number + 1})" if best and best.score is not None else ""
    console.print(f"{method}, trial {trial.number + 1}: {settings(trial)}: {ended}{so_far}", soft_wrap=True)


@contextmanager
def carrying_on(out: Path | None, folder: Path) -> Iterator[None]:
    """Say how to go on after Ctrl-C: trials that have ended are kept."""
    try:
        yield
    except KeyboardInterrupt:
        say_how_to_go_on(out, folder)
        raise typer.Exit(130) from None


def say_how_to_go_on(out: Path | None, folder: Path) -> None:
    again = "The same command carries on." if out else f"The same command with --out {folder} carries on."
    console.print(f"Interrupted. {again}", soft_wrap=True)
