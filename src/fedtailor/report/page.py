"""The report as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from fedtailor.extras import extra
from fedtailor.report.interactive import plotly_chart
from fedtailor.report.sections import Section
from fedtailor.report.templates import template


def page(sections: Sequence[Section], stamp: str = "") -> str:
    """Render the whole page; with a stamp, the page polls its server for changes since."""
    style, script = (files("fedtailor.report").joinpath(name).read_text() for name in ("page.css", "page.js"))
    scripts, found = [plotly_js(), script], content(sections, stamp)
    return template("page.html").render(
        sections=sections,
        charts=found["charts"],
        live=bool(stamp),
        policy=Markup(_policy(scripts, live=bool(stamp))),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        content=Markup(as_json(found).replace("<", "\\u003c")),  # no text in it can close the script
    )


def plotly_js() -> str:
    """Return the library that draws the page's charts, as it comes with plotly."""
    with extra("report", "The page"):
        from plotly.offline import get_plotlyjs
    script: str = get_plotlyjs()
    return script


def content(sections: Sequence[Section], stamp: str = "") -> dict[str, Any]:
    """Return what changes during a run: the charts, the text of each section, and a stamp of the state."""
    charts = {f"{s.id}-{k}": plotly_chart(chart) for s in sections for k, chart in enumerate(s.charts)}
    texts = {s.id: section_text(s) for s in sections} if stamp else {}  # a static page has them already
    return {"charts": charts, "texts": texts, "stamp": stamp}


def as_json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, separators=(",", ":"), allow_nan=False)


def section_text(section: Section) -> str:
    """Render paragraphs, tables and commands of a section as HTML."""
    module: Any = template("text.html").module
    return str(module.text(section))


def _policy(scripts: Sequence[str], *, live: bool) -> str:
    """Return the content security policy: only these scripts run, and nothing is fetched from elsewhere."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    connect = "'self'" if live else "'none'"
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; connect-src {connect}"
