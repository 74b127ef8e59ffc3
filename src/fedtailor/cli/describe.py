"""The command `fedtailor data describe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.arguments import Words, config_file, console
from fedtailor.cli.starting import importing
from fedtailor.errors import FedTailorError

if TYPE_CHECKING:
    from fedtailor.data.description import Column

File = Annotated[Path, typer.Option("--out", "-o", help="file for the description")]


def describe(words: Words = None, out: File = Path("description.json")) -> None:
    """Write down what the columns, categories, numbers and labels of a data set mean, for the sites of a federation to agree on.

    Example: `fedtailor data describe data=table data.path=patients.csv data.label=outcome -o description.json`

    Learned from the data's training rows. Edit the lists of values by hand where other sites have more, then give the file to
    `fedtailor deploy init --description`.
    """
    with importing():
        from dataclasses import replace

        from fedtailor.experiment.config import Config
    refuse_existing(out)
    file, overrides = config_file(words or [])
    description = Config.load(file, overrides).alone("all").description
    replace(description, notes=()).write(out)
    for note in description.notes:
        console.print(note, soft_wrap=True)
    for column in description.columns:
        console.print(f"{column.name}: {_summary(column)}", soft_wrap=True, markup=False)
    console.print(f"Wrote {out}. Check what it says before you send it to anybody.", soft_wrap=True)


def refuse_existing(path: Path) -> None:
    """Leave alone a description that is there: somebody may have edited it."""
    if path.exists():
        raise FedTailorError(f"'{path}' is there already. Move it away, or choose another file.")


def _summary(column: Column) -> str:
    if column.kind == "category":
        return f"category, {len(column.values)} values"
    return f"number, mean {column.mean:g}, deviation {column.std:g}" + ", may be missing" * column.indicator
