"""The command `fedtailor onboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing
from fedtailor.errors import FedTailorError


def onboard(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    words: Annotated[
        list[str] | None, typer.Argument(help="data=… data.path=… and other overrides for the new client's data")
    ] = None,
    data: Annotated[
        str, typer.Option("--data", help="data set, or a .csv, .parquet or .npz file, or a folder of images")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="new file for the client's model (default: newcomer.safetensors, or newcomer-2 …)"
        ),
    ] = None,
) -> None:
    """Give a client that joins after training its personal model, by the method's rule for new clients.

    Example: `fedtailor onboard runs/a --data newcomer.csv --out newcomer.safetensors`

    A table needs the columns that the run was trained on, but none that names a client.
    """
    if out is not None and out.exists():
        raise FedTailorError(
            f"'{out}' is there already, and nothing is overwritten: choose another --out, or delete it."
        )
    out = out or _new_file("newcomer")
    with importing():
        from fedtailor.engines.base import save_module
        from fedtailor.experiment import onboarding
        from fedtailor.experiment.headline import Headline
    simulation = onboarding.finished_simulation(run)
    new_words = [*onboarding.newcomer_words(run, data), *(words or [])]
    newcomer = onboarding.onboard(
        simulation, onboarding.read_newcomer(run, new_words, simulation.federation.description)
    )
    save_module(newcomer.model, out)
    console.print(f"A new client of {simulation.method.name} {simulation.method.new_client}.")
    if newcomer.after.total:
        metric = Headline(simulation.worker.metrics[0].name)
        after, before = (metric.shown(score.value(metric.name)) for score in (newcomer.after, newcomer.before))
        console.print(
            f"{metric.heading} on its {newcomer.after.total} test samples: {after} (before it trained: {before})"
        )
    console.print(f"Model: {out}", soft_wrap=True)


def _new_file(name: str) -> Path:
    """Return NAME.safetensors, or NAME-2.safetensors … if that is taken."""
    file, count = Path(f"{name}.safetensors"), 2
    while file.exists():
        file, count = Path(f"{name}-{count}.safetensors"), count + 1
    return file
