"""Check a command that is not run: it exists, and so do its options, keys, values and methods."""

from __future__ import annotations

import shlex
from typing import Any

from fedtailor.cli.arguments import split_methods
from fedtailor.deploy.settings import DeploySettings
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import CHOICES, Config, method_overrides
from fedtailor.registry import options
from tools.pages import commands

DEPLOYMENT = {option.name for option in options(DeploySettings)}
LISTS = {
    "methods": CHOICES["method"],
    "datasets": CHOICES["data"],
    "nets": CHOICES["net"],
    "partitions": CHOICES["partition"],
}
UNKNOWN = ("…", "$", "METHODS")  # a place to fill in, or a variable of the shell


def check(line: str) -> None:
    """Raise an error if the command, an option, a key, a value or a method is not known; other programs are not looked at."""
    if not line.startswith("fedtailor ") or any(mark in line for mark in UNKNOWN):
        return
    words = shlex.split(line)[1:]
    known = commands.every_command()
    name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
    if name.startswith("-"):
        return  # of the program itself: --install-completion
    if name not in known:
        raise FedTailorError(f"There is no command {name}.")
    given = positional(known[name], words[len(name.split()) :])
    if name in LISTS:
        for entry in given:
            assert entry.endswith(".py") or LISTS[name].find(entry)
    elif name in ("compare", "tune", "recommend"):
        named, given = split_methods(given)
        for method in named:
            Config.load(None, checkable(method_overrides(method)))
    Config.load(None, checkable([word for word in given if "=" in word]))


def positional(command: Any, words: list[str]) -> list[str]:
    """Return the words that are neither options nor their values, and refuse an unknown option."""
    values, _, _ = command.make_parser(command.context_class(command)).parse_args(words)
    found = [values.get(p.name) for p in command.params if p.param_type_name == "argument"]
    listed = [[entry] if isinstance(entry, str) else entry for entry in found if isinstance(entry, str | list | tuple)]
    return [word for entry in listed for word in entry if isinstance(word, str)]


def checkable(words: list[str]) -> list[str]:
    """Leave out the settings of a deployment, and files of a user's own with their options."""
    kept = [word for word in words if word.partition("=")[0] not in DEPLOYMENT]
    own = {word.partition("=")[0] for word in kept if word.endswith(".py")}
    return [word for word in kept if word.partition("=")[0].partition(".")[0] not in own]
