"""Arguments that several commands share, and the terminal they write to. Commands import heavy modules when they are called."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.terminal import Terminal

console = Terminal()

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value …]", show_default=False)]
MethodWords = Annotated[
    list[str] | None, typer.Argument(metavar="[CONFIG.toml] [METHOD …] [key=value …]", show_default=False)
]
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


def split_methods(words: list[str] | None) -> tuple[list[str], list[str]]:
    """Split arguments into methods (fedrep, fedrep:head_epochs=5) and what `config_file` takes."""
    is_method = {word: "=" not in word.partition(":")[0] and not word.endswith(".toml") for word in words or []}
    return [w for w in words or [] if is_method[w]], [w for w in words or [] if not is_method[w]]
