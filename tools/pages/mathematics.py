"""LaTeX as MathML, which browsers show without a script or a font from elsewhere."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $…$ and $$…$$ with its option `generic`.
MARKED = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def with_mathml(content: str) -> str:
    """Return a page's HTML with its mathematics as MathML."""
    return MARKED.sub(lambda found: mathml(html.unescape(found["tex"]), block=found["tag"] == "div"), content)


def mathml(tex: str, *, block: bool) -> str:
    """Convert LaTeX, and refuse a command that is not known."""
    made = convert(tex.strip(), display="block" if block else "inline")
    if unknown := re.search(r">\\\w+<", made):
        raise ValueError(f"LaTeX that cannot be shown, {unknown[0][1:-1]}: {tex}")
    return f'<div class="equation">{made}</div>' if block else made
