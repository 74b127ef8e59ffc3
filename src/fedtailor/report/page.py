"""The report as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

from fedtailor.extras import extra
from fedtailor.report.sections import Section
from fedtailor.report.sheets import Best, one_line


def page(sections: Sequence[Section], stamp: str = "") -> str:
    """Render the whole page; with a stamp, the page polls its server for changes since."""
    scripts = [plotly_js(), _file("page.js")]
    return _template("page.html").render(
        sections=sections,
        live=bool(stamp),
        policy=Markup(_policy(scripts, live=bool(stamp))),
        style=Markup(_file("page.css")),
        scripts=[Markup(script) for script in scripts],
        content=Markup(_inline(content(sections, stamp))),
    )


def plotly_js() -> str:
    """Return the library that draws the page's charts, as it comes with plotly."""
    with extra("report", "The page"):
        from plotly.offline import get_plotlyjs
    script: str = get_plotlyjs()
    return script


def content(sections: Sequence[Section], stamp: str = "") -> str:
    """Return what changes during a run as JSON: the text of each section, the charts, and a stamp of the state."""
    charts = {f"{s.id}-{k}": chart for s in sections for k, chart in enumerate(s.charts)}
    texts = {s.id: section_text(s) for s in sections} if stamp else {}  # a static page has them already
    return json.dumps({"charts": charts, "texts": texts, "stamp": stamp}, separators=(",", ":"), allow_nan=False)


def section_text(section: Section) -> str:
    """Render paragraphs, tables and commands of a section as HTML."""
    module: Any = _template("text.html").module
    return str(module.text(section))


@cache
def _template(name: str) -> Template:
    """Load a template that escapes each value and puts it on one line, unless it is Markup."""
    shown = Environment(
        loader=PackageLoader("fedtailor", "report"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else one_line(value),
    )
    shown.tests["best"] = lambda value: isinstance(value, Best)
    return shown.get_template(name)


def _file(name: str) -> str:
    return files("fedtailor.report").joinpath(name).read_text()


def _inline(data: str) -> str:
    """Make JSON safe between script tags, so that no text in it can close them."""
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(scripts: Sequence[str], *, live: bool) -> str:
    """Return the content security policy: only these scripts run, and nothing is fetched from elsewhere."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    connect = "'self'" if live else "'none'"
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {connect}"
