"""One file that needs nothing else and runs nothing a user wrote."""

from __future__ import annotations

import json
import re

import pytest
from plotly.offline import get_plotlyjs

from fedtailor.report.material import load_material
from fedtailor.report.page import page
from fedtailor.report.sections import sections

EVIL = "</script><script>alert(1)</script>"


@pytest.fixture
def html(make_run, tmp_path) -> str:
    make_run("a", "method=fedavg", labels=[EVIL, "<b>dog</b>"], names=[f"<img src=x onerror={i}>" for i in range(3)])
    make_run("b", "method=fedrep", config={"data": {"proxy": EVIL}}, accuracy=[0.2, 0.4], state="interrupted")
    make_run("d", config={"method": {"name": "<!--<script>.py"}})
    make_run("c", "method=fedrep", "partition.beta=0.7", "seed=3")
    return page(sections(load_material([tmp_path]), f"fedtailor report {EVIL}"))


def test_users_words_are_never_markup(html):
    own = html.replace(get_plotlyjs(), "")
    assert "alert(1)" in own  # it is shown
    assert EVIL not in own
    assert "<img" not in own
    assert own.count("<script") == own.count("</script>") == 3
    charts = json.dumps(json.loads(content_of(html))["charts"])
    assert "<b>" not in charts  # plotly.js would take it for markup
    assert "&lt;b&gt;dog" in charts


def content_of(html: str) -> str:
    return re.search(r'<script type="application/json" id="content">(.*?)</script>', html, re.S)[1]


def test_nothing_is_fetched_and_only_its_own_scripts_may_run(html):
    own = html.replace(get_plotlyjs(), "")
    assert html.count(get_plotlyjs()) == 1
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", own)
    assert "http" not in own.replace("http-equiv", "")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', own)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in re.search(r"script-src [^;]*", policy)[0]


def test_every_federation_has_its_charts_and_an_unfinished_run_a_warning(html):
    charts = json.loads(content_of(html))["charts"]
    for name in charts:
        assert f'id="{name}"' in html
    assert {name.split("-")[0] for name in charts} == {"f0", "f1", "f2"}
    assert "Not every run is finished: 1 interrupted" in html
    assert "interrupted after round 2 of 2" in html
