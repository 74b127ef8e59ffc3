"""Pages from templates, in which every value is escaped for its format unless it is Markup."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

from fedtailor.report.sheets import Best, Sheet, as_markdown, escape_markdown, one_line


@cache
def template(name: str) -> Template:
    """Load a template of this folder, HTML or Markdown; a value stays on one line."""
    web = name.endswith(".html")
    escape = one_line if web else escape_markdown  # in HTML, jinja2 then escapes markup
    shown = Environment(
        loader=PackageLoader("fedtailor", "report"),
        autoescape=web,
        trim_blocks=not web,
        lstrip_blocks=not web,
        finalize=lambda value: value if isinstance(value, Markup) else escape(value),
    )
    shown.tests["best"] = lambda value: isinstance(value, Best)
    shown.filters["table"] = _table
    return shown.get_template(name)


def markdown(name: str, **values: Any) -> str:
    """Render a Markdown page, with one blank line where parts that are not there would leave several."""
    return re.sub(r"\n{3,}", "\n\n", template(name).render(values)).strip() + "\n"


def _table(sheet: Sheet, level: int = 2) -> Markup:
    return Markup(as_markdown(sheet, level).strip())
