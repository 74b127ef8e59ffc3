"""Escape text from files, such as names of clients, classes and columns, for a terminal or a spreadsheet.

Names are stored unchanged and escaped only on output: distinct names stay distinct, and a folder of runs from somebody else is safe to
look at.
"""

from __future__ import annotations

import re

# Control characters, lone surrogates, line separators, and marks that change the writing direction.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HIDDEN_IN_LINES = re.compile(f"(?!\n){_HIDDEN.pattern}")


def printable(text: object, *, lines: bool = False) -> str:
    r"""Return the text with every control character as a Python escape, such as \x1b; `lines` keeps line breaks."""
    return (_HIDDEN_IN_LINES if lines else _HIDDEN).sub(lambda found: ascii(found[0])[1:-1], str(text))


def drawable(text: object) -> str:
    """Return the text for a picture, in which a dollar sign does not begin a formula."""
    return printable(text).replace("$", r"\$")


def cell(value: object) -> str:
    """Return a value for a CSV file: text that a spreadsheet would take for a formula gets a quotation mark in front."""
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
