"""A table of text for Markdown, LaTeX, CSV and the terminal, with all users' text escaped; `templates` has it as HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill

from rich.table import Table
from rich.text import Text

from fedtailor.printable import cell, printable

WORDS = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum", "<": "textless", ">": "textgreater"}
SIGNS = {"±": r"\pm", "×": r"\times", "→": r"\to", "ρ": r"\rho", "−": "-"}
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"\\{word}{{}}" for sign, word in WORDS.items()},
    **{sign: f"${word}$" for sign, word in SIGNS.items()},
    "|": r"\textbar{}",
    "—": "---",
}
WIDEST = 22  # characters per line of a name in the terminal


class Best(str):
    """A cell set in bold: the best of its column."""

    __slots__ = ()


@dataclass(frozen=True)
class Sheet:
    """A titled table; the first `left` columns hold text, the others numbers; notes stand below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    left: int = 1


def as_markdown(sheet: Sheet, level: int = 3) -> str:
    rule = ["---" if k < sheet.left else "---:" for k in range(len(sheet.header))]
    rows = [[f"**{escape_markdown(c)}**" if isinstance(c, Best) else escape_markdown(c) for c in r] for r in sheet.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (map(escape_markdown, sheet.header), rule, *rows)]
    notes = [text for note in sheet.notes for text in ("", escape_markdown(note))]
    heading = [f"{'#' * level} {escape_markdown(sheet.title)}", ""] if sheet.title else []
    return "\n".join([*heading, *lines, *notes, ""])


def as_latex(sheet: Sheet) -> str:
    """Render as a LaTeX table for the package booktabs."""
    import pandas as pd  # slow to import

    rows = [
        [rf"\textbf{{{escape_latex(c)}}}" if isinstance(c, Best) else escape_latex(c) for c in r] for r in sheet.rows
    ]
    caption = " ".join(escape_latex(text if text.endswith(".") else f"{text}.") for text in (sheet.title, *sheet.notes))
    columns = "l" * sheet.left + "r" * (len(sheet.header) - sheet.left)
    table = pd.DataFrame(rows, columns=[escape_latex(text) for text in sheet.header])
    text: str = table.to_latex(index=False, escape=False, caption=caption, column_format=columns)
    return text.replace(r"\begin{table}", "\\begin{table}\n\\centering", 1)


def as_rich(sheet: Sheet) -> Table:
    """Render for the terminal; long names are wrapped to leave room for the numbers."""
    about = (printable(sheet.title), "\n".join(map(printable, sheet.notes)))
    title, caption = (Text(text) if text else None for text in about)
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for k, name in enumerate(sheet.header):
        table.add_column(Text(name), justify="left" if k < sheet.left else "right", no_wrap=k == 0)
    for name, *cells in sheet.rows:
        lines = fill(printable(name), WIDEST, break_on_hyphens=False)
        table.add_row(Text(lines), *(Text(printable(c), "bold" if isinstance(c, Best) else "") for c in cells))
    return table


def as_csv(sheet: Sheet) -> str:
    return write_csv([sheet.header, *sheet.rows])


def write_csv(rows: Iterable[Sequence[object]]) -> str:
    """Write rows as CSV in which no text can act as a formula or a terminal command."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(v) if isinstance(v, str) else v for v in row] for row in rows)
    return text.getvalue()


def escape_html(text: object) -> str:
    return html.escape(one_line(text), quote=False)


def escape_markdown(text: object) -> str:
    """Escape Markdown: angle brackets and ampersands become entities, every other special character gets a backslash."""
    return re.sub(r"([\\`*_{}\[\]#|~!$])", r"\\\1", escape_html(text))


def escape_latex(text: object) -> str:
    return "".join(LATEX.get(sign, sign) for sign in one_line(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
