"""The report as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from fedtailor.report.sections import Section
from fedtailor.report.sheets import escape_html


def page(sections: Sequence[Section], stamp: str = "") -> str:
    """The whole page; with a stamp it asks the server it came from for changes since."""
    scripts = [get_plotlyjs(), files("fedtailor.report").joinpath("page.js").read_text()]
    style = files("fedtailor.report").joinpath("page.css").read_text()
    title = escape_html(sections[0].title)
    links = "".join(f'<a href="#{s.id}">{escape_html(s.title)}</a>' for s in sections if s.level == 2)
    first, *rest = (_section(s) for s in sections)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, live=bool(stamp))}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{title}</title><link rel="icon" href="data:,">',
            f"<style>{style}</style></head><body>",
            '<div id="live"></div>' if stamp else "",
            f"<main>{first}<nav>{links}</nav>{''.join(rest)}</main>",
            f'<script type="application/json" id="content">{_inline(content(sections, stamp))}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>\n",
        ]
    )


def content(sections: Sequence[Section], stamp: str = "") -> str:
    """What changes while a run goes on, as JSON: the words of each section, the charts, and a stamp that tells states apart."""
    charts = {f"{s.id}-{k}": chart for s in sections for k, chart in enumerate(s.charts)}
    texts = {s.id: s.html for s in sections} if stamp else {}  # a page that stays as it is has them already
    return json.dumps({"charts": charts, "texts": texts, "stamp": stamp}, separators=(",", ":"), allow_nan=False)


def _section(section: Section) -> str:
    heading = f"h{section.level}"
    charts = "".join(
        f'<div class="chart" id="{section.id}-{k}" style="min-height:{chart["layout"]["height"]}px"></div>'
        for k, chart in enumerate(section.charts)
    )
    return (
        f'<section id="{section.id}"><{heading}>{escape_html(section.title)}</{heading}>'
        f'<div class="text">{section.html}</div>'
        + (f'<div class="charts">{charts}</div>' if charts else "")
        + "</section>"
    )


def _inline(data: str) -> str:
    """JSON between script tags: no text in it can close them."""
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(scripts: Sequence[str], *, live: bool) -> str:
    """Only these scripts run, whatever else came into the page, and nothing is fetched."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    rules: dict[str, Any] = {"default-src": "'none'", "script-src": hashes, "style-src": "'unsafe-inline'"}
    rules |= {"img-src": "data: blob:", "connect-src": "'self'" if live else "'none'"}
    return "; ".join(f"{rule} {value}" for rule, value in rules.items())
