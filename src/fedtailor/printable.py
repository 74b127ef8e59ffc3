"""Text from files, such as the names of clients, classes and columns, on its way to a terminal or a spreadsheet.

Names are kept as they are and written safely where they leave: two names stay two, and a folder of runs that somebody else made is as
harmless to look at as one's own.
"""

from __future__ import annotations

import re

# Control characters, halves of characters, line separators, and marks that turn the direction of writing.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HIDDEN_IN_LINES = re.compile(f"(?!\n){_HIDDEN.pattern}")


def printable(text: object, *, lines: bool = False) -> str:
    r"""The text with every control character shown as what Python calls it, such as \x1b; `lines` keeps line breaks."""
    return (_HIDDEN_IN_LINES if lines else _HIDDEN).sub(lambda found: ascii(found[0])[1:-1], str(text))


def drawable(text: object) -> str:
    """A text for a picture, in which a dollar sign is one and does not begin a formula."""
    return printable(text).replace("$", r"\$")


def cell(value: object) -> str:
    """A value for a CSV file: a text that a spreadsheet would take for a formula gets a quotation mark in front."""
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
