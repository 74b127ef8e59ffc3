"""The site as a browser shows it, on a desk and on a phone, light and dark. `make docs` builds it; without it this is skipped."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser import MARKS, started

SITE = Path(__file__).parents[2] / "site"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
LOOKED_AT = ["index.html", "methods/fedrep.html", "notebooks/compare.html", "scale.html", "reference/options.html"]
SCREENS = {"desk": (1400, 900, False), "phone": (390, 844, True)}
pytestmark = [*MARKS, pytest.mark.skipif(not PAGES, reason="needs the site: make docs")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = started(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def become(browser, screen: str, scheme: str) -> None:
    width, height, mobile = SCREENS[screen]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def too_wide(browser) -> int:
    """Return by how many pixels the page is wider than the screen."""
    return browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")


def complaints(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("screen", SCREENS)
def test_no_page_is_wider_than_the_screen(browser, address, screen):
    become(browser, screen, "light")
    wide = {}
    for page in PAGES if screen == "phone" else LOOKED_AT:
        browser.get(f"{address}/{page}")
        if (pixels := too_wide(browser)) > 0:
            wide[page] = pixels
    assert wide == {}
    assert complaints(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_pages_are_shown_in_the_colours_of_the_system(browser, address, screen, scheme):
    become(browser, screen, scheme)
    for page in LOOKED_AT:
        browser.get(f"{address}/{page}")
        shown = browser.execute_script(
            "const lit = c => c.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 765;"
            "const of = (q, p) => lit(getComputedStyle(document.querySelector(q))[p]);"
            "return [of('body', 'backgroundColor'), of('.md-typeset p', 'color')]"
        )
        back, text = shown
        assert (back > 0.5) == (scheme == "light"), page
        assert abs(back - text) > 0.5, page
        broken = "return [...document.images].filter(i => i.complete && i.naturalWidth == 0).map(i => i.src)"
        assert browser.execute_script(broken) == []
    assert complaints(browser) == []


def test_one_gets_from_the_start_to_a_method_and_back(browser, address):
    become(browser, "desk", "light")
    browser.get(f"{address}/index.html")
    for link in ("Methods", "fedrep"):
        target = browser.find_element("partial link text", link)
        browser.execute_script("arguments[0].click()", target)
    assert browser.current_url.endswith("/methods/fedrep.html")
    assert browser.find_element("tag name", "h1").text.startswith("fedrep")
    assert browser.find_elements("css selector", ".equation math")
    browser.back()
    assert browser.current_url.endswith("/methods/index.html")
    become(browser, "phone", "light")
    browser.get(f"{address}/index.html")
    assert not browser.find_element("css selector", ".md-tabs").is_displayed()
    drawer = browser.find_element("css selector", "label.md-header__button[for=__drawer]")
    assert drawer.is_displayed()
    drawer.click()
    assert browser.find_element("css selector", "#__drawer").is_selected()
