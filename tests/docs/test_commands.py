"""Every `fedtailor …` in README and the docs is a command that there is, with options and keys that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli.arguments import split_methods
from fedtailor.deploy.settings import DeploySettings
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import CHOICES, Config, method_overrides
from fedtailor.registry import options
from tools.pages import cards, commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "your-data.md")  # tests/test_your_data.py runs its commands
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
DEPLOYMENT = {option.name for option in options(DeploySettings)}
LISTS = {
    "methods": CHOICES["method"],
    "datasets": CHOICES["data"],
    "nets": CHOICES["net"],
    "partitions": CHOICES["partition"],
}
UNKNOWN = ("…", "$", "METHODS")  # a place to fill in, or a variable of the shell


def written(text: str) -> list[str]:
    """Return the commands of all blocks, continued lines joined and comments left out."""
    lines = [line.strip() for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [re.sub(r"\s+#.*$", "", line) for line in lines if line.startswith("fedtailor ")]


def check(line: str) -> None:
    """Raise an error if the command, an option, a key, a value or a method is not known."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page(page):
    for line in written(page.read_text()):
        if not any(mark in line for mark in UNKNOWN):
            check(line)


def test_commands_of_the_cards_and_of_the_help():
    for text in (*cards.pages().values(), commands.page()):
        for line in written(text):
            check(line)


@pytest.mark.parametrize(
    "line",
    [
        "fedtailor rum method=fedrep",
        "fedtailor run method=fedrap",
        "fedtailor run method=fedrep --colour",
        "fedtailor run method=fedrep head_epochs=5",
        "fedtailor run method=fedrep method.head_epochs=-1",
        "fedtailor compare local fedrap rounds=5",
        "fedtailor compare local fedrep:heads=5 rounds=5",
    ],
)
def test_a_mistake_is_found(line):
    with pytest.raises(Exception, match=r"no command|There is no method|No such option|Unknown key|not allowed"):
        check(line)
