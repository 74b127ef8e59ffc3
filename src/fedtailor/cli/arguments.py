"""Arguments that several commands share, and the terminal they write to. Commands import heavy modules when they are called."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.report.terminal import Terminal

console = Terminal()

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value …]", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="folder for the results (default: a new one below runs/)")
]


def typed() -> str:
    """Return the command as the user typed it."""
    return shlex.join(["fedtailor", *sys.argv[1:]])


def config_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """Split arguments into an optional leading config file and key=value overrides."""
    if words and words[0].endswith(".toml"):
        return Path(words[0]), words[1:]
    return None, words
