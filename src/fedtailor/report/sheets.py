"""A table of words, as HTML, Markdown or LaTeX in which nothing a user wrote is markup."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.printable import printable

LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
    "ρ": r"$\rho$",
    "−": "$-$",
    "—": "---",
}


@dataclass(frozen=True)
class Sheet:
    """A titled table; the first `left` columns hold words and stand at the left, the others numbers; notes stand below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    left: int = 1
    strong: str = ""  # the first cell of the row to set in bold


def as_html(sheet: Sheet) -> str:
    """A table that scrolls sideways on a narrow screen, with its notes; the title is left to the page."""
    head = "".join(f"<th{_side(sheet, k)}>{escape_html(text)}</th>" for k, text in enumerate(sheet.header))
    body = "".join(
        f"<tr{' class=strong' if sheet.strong and row[0] == sheet.strong else ''}>"
        + "".join(f"<td{_side(sheet, k)}>{escape_html(text)}</td>" for k, text in enumerate(row))
        + "</tr>"
        for row in sheet.rows
    )
    notes = "".join(f'<p class="note">{escape_html(note)}</p>' for note in sheet.notes)
    if not sheet.rows:
        return notes
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>{notes}'


def as_markdown(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rules = ["---" if k < sheet.left else "---:" for k in range(len(sheet.header))]
    rows = [
        [f"**{t}**" if sheet.strong and row[0] == sheet.strong and t else t for t in map(escape_markdown, row)]
        for row in sheet.rows
    ]
    table = [line([escape_markdown(t) for t in sheet.header]), line(rules), *map(line, rows)]
    notes = [text for note in sheet.notes for text in ("", escape_markdown(note))]
    return "\n".join([f"### {escape_markdown(sheet.title)}", "", *table, *notes, ""])


def as_latex(sheet: Sheet) -> str:
    """A table of the package booktabs."""
    columns = "".join("l" if k < sheet.left else "r" for k in range(len(sheet.header)))
    rows = [
        " & ".join(rf"\textbf{{{t}}}" if sheet.strong and row[0] == sheet.strong else t for t in map(escape_latex, row))
        for row in sheet.rows
    ]
    caption = " ".join(escape_latex(text if text.endswith(".") else f"{text}.") for text in (sheet.title, *sheet.notes))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escape_latex, sheet.header)) + r" \\",
        r"\midrule",
        *(row + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape_html(text: object) -> str:
    return html.escape(one_line(text))


def escape_markdown(text: object) -> str:
    """Angle brackets and ampersands as entities, every other sign that Markdown may take as its own behind a backslash."""
    entities = html.escape(one_line(text), quote=False)
    return re.sub(r"([\\`*_{}\[\]#|~!$])", r"\\\1", entities)


def escape_latex(text: object) -> str:
    return "".join(LATEX.get(sign, sign) for sign in one_line(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))


def _side(sheet: Sheet, column: int) -> str:
    return ' class="left"' if column < sheet.left else ""
