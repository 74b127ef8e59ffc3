"""The page of all commands, from the command line itself."""

from __future__ import annotations

import re
from typing import Any

import typer

from fedtailor.cli.app import app
from fedtailor.report.sheets import escape_markdown
from tools.pages.text import shown, table

INTRODUCTION = """# Commands

Every command, as `fedtailor COMMAND --help` shows it. Words of the form `key=value` are [options of a run](options.md).
"""


def every_command() -> dict[str, Any]:
    """Return the commands, those of groups too, by the words that are typed after `fedtailor`."""
    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {word}": one for word, one in inner.items()} if inner else {name: command}
    return found


def page() -> str:
    return "\n".join([INTRODUCTION, *(_section(name, command) for name, command in every_command().items())])


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([f"fedtailor {name}", "[OPTIONS]", *(_placeholder(p) for p in arguments)])
    first, *rest = (command.help or "").split("\n\n")
    text = [f"## fedtailor {name}\n", f"{_prose(first)}\n", f"```text\n{usage}\n```\n"]
    for paragraph in rest:
        example = re.fullmatch(r"Example: `(.*)`", paragraph, re.DOTALL)
        text.append(f"```sh\n{example[1]}\n```\n" if example else f"{_prose(paragraph)}\n")
    rows = [[f"`{_placeholder(p)}`", escape_markdown(p.help)] for p in arguments if p.help]
    for p in command.params:
        if p.param_type_name == "option":
            names = ", ".join(f"`{word}`" for word in (*p.opts, *p.secondary_opts))
            rows.append([names, escape_markdown(f"{p.help or ''}{_allowed(p)}{_default(p)}")])
    return "\n".join([*text, table(["argument", "meaning"], rows) if rows else ""])


def _prose(text: str) -> str:
    return text.replace("\n", " ").replace("<", "&lt;")


def _placeholder(argument: Any) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _allowed(option: Any) -> str:
    choices = getattr(option.type, "choices", None)
    return f" ({', '.join(getattr(c, 'value', str(c)) for c in choices)})" if choices else ""


def _default(option: Any) -> str:
    default = option.default
    if default is None or default in (False, "", ()) or callable(default) or not isinstance(default, str | int | float):
        return ""
    return f" (default: {shown(default)})"
