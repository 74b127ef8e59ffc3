"""Small pieces of Markdown that the generated pages share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from fedtailor.registry import Option
from fedtailor.report.sheets import escape_markdown

HUGE = re.compile(r"( and)? ≤ \d(\.\d+)?e\+\d+")  # bounds that only keep out mistakes


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are Markdown already; `numbers` are the columns to align right."""
    rule = ["---:" if k in numbers else "---" for k in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)) + "\n"


def shown(default: Any) -> str:
    """Return a default as it is typed."""
    if default is None or default in ("", ()):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:.6g}"
    return ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)


def option_table(prefix: str, options: Sequence[Option]) -> str:
    """Return the options of one entry: key, default, allowed values, range of tuning if any has one, and meaning."""
    if not options:
        return "It has no options of its own.\n"
    tuned = any(o.search for o in options)
    header = ["option", "default", "allowed", *(["tuned over"] if tuned else []), "meaning"]
    rows = [
        [
            f"`{prefix}{o.name}`",
            f"`{shown(o.default)}`",
            escape_markdown(HUGE.sub("", o.type)),
            *([escape_markdown(str(o.search or ""))] if tuned else []),
            escape_markdown(o.meaning),
        ]
        for o in options
    ]
    return f'<div class="options" markdown>\n\n{table(header, rows)}\n</div>\n'


def paragraphs(cls: type) -> list[str]:
    """Return the paragraphs of a docstring; those with a list keep their lines."""
    return [p if p[:3] == "1. " else p.replace("\n", " ") for p in (inspect.getdoc(cls) or "").split("\n\n")]


def code(names: Iterable[str], none: str = "nothing") -> str:
    return ", ".join(f"`{name}`" for name in names) or none
