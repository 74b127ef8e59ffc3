"""The command `fedtailor recommend`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtailor.cli.arguments import MethodWords, Out, config_file, console, split_methods
from fedtailor.cli.starting import importing
from fedtailor.cli.tune import carrying_on, say_trial


def recommend(
    words: MethodWords = None,
    out: Out = None,
    minutes: Annotated[float, typer.Option(help="how long to try methods, about", min=0.0)] = 10.0,
) -> None:
    """Say which method suits your data, what it gains over training alone, and who loses; or that federating is not worth it.

    Example: `fedtailor recommend data=heart rounds=20 --minutes 2 --out runs/advice`

    It tries local, fedavg, fedavg-ft, fedrep and tailor (or the methods that are named), searches their settings and measures gains with
    new seeds, all on samples held out of the training samples; test samples have no say. Each method is tried at least once,
    however short the time. The same command with the same --out goes on with what it has tried.
    """
    with importing():
        from fedtailor.api.recommend import CANDIDATES, advise
        from fedtailor.api.run import new_folder
        from fedtailor.experiment.config import overridden
        from fedtailor.experiment.progress import Progress
        from fedtailor.extras import can_draw
        from fedtailor.files import replace_text
        from fedtailor.report.recommendation import next_command, recommendation_picture, sentences
    candidates, given = split_methods(words)
    folder = out or new_folder("advice")
    values = overridden(*config_file(given))
    with carrying_on(out, folder):
        advice = advise(
            values, candidates or CANDIDATES, minutes, folder, callbacks=[Progress(console)], on_trial=say_trial
        )
    head, *reasons = sentences(advice)
    command = next_command(advice, given)
    picture = folder / "recommendation.png"
    if drawn := can_draw():
        recommendation_picture(advice, picture)
    listed = "\n".join(f"- {reason}" for reason in reasons)
    shown = f"\n![scores and gains]({picture.name})\n" if drawn else ""
    replace_text(folder / "recommendation.md", f"# {head}\n\n{listed}\n\nNext:\n\n    {command}\n{shown}")
    console.print(f"\n{head}", style="bold", soft_wrap=True)
    for reason in reasons:
        console.print(f"- {reason}", soft_wrap=True)
    console.print(f"Next:  {command}", soft_wrap=True)
    console.print(f"Page: {folder / 'recommendation.md'}" + (f"\nPicture: {picture}" if drawn else ""), soft_wrap=True)
