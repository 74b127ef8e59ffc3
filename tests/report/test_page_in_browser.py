"""The page as a browser shows it: chromium opens it, clicks in it, and has nothing to complain of."""

from __future__ import annotations

import json
from threading import Thread

import pytest

from fedtailor.report.live import serve
from fedtailor.report.material import load_material
from fedtailor.report.page import page
from fedtailor.report.sections import sections
from tests.browser import MARKS, started

selenium = pytest.importorskip("selenium.webdriver", reason="needs selenium")
waiting = pytest.importorskip("selenium.webdriver.support.wait", reason="needs selenium")
STALE = selenium.remote.errorhandler.StaleElementReferenceException  # replaced between finding and reading
pytestmark = MARKS
EVIL = "</script><script>document.title = 'taken over'</script>"
SETTLED = "const done = arguments[0]; drawAll().then(() => done());"


@pytest.fixture
def browser(tmp_path):
    driver = started(tmp_path / "profile")
    yield driver
    driver.quit()


@pytest.fixture
def study(make_run, tmp_path):
    for seed in (0, 1):
        make_run(
            f"study/a{seed}",
            f"seed={seed}",
            "method=fedavg",
            accuracy=[0.2, 0.4, 0.5 + seed / 10],
            labels=[EVIL, "dog"],
        )
        make_run(f"study/b{seed}", f"seed={seed}", "method=fedrep", accuracy=[0.3, 0.6, 0.8])
    return tmp_path / "study"


def shown(browser, chart: str) -> dict[str, object]:
    """The traces with a line in the legend, and whether each is visible."""
    traces = browser.execute_script(
        f"return document.getElementById('{chart}')._fullData.map(t => [t.name, t.visible])"
    )
    return dict(traces)


def click_legend(browser, name: str) -> None:
    """A click like a user's; found again if the chart was drawn anew while the pointer moved."""

    def clicked(_: object) -> bool:
        entries = browser.find_elements("css selector", "#f0-rounds-0 .legend .traces")
        (entry,) = [e for e in entries if e.text == name]
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", entry)
        toggle = entry.find_element("css selector", ".legendtoggle")
        selenium.ActionChains(browser).move_to_element(toggle).click().perform()
        return True

    waiting.WebDriverWait(browser, 30, ignored_exceptions=[STALE]).until(clicked)
    waiting.WebDriverWait(browser, 30).until(lambda b: shown(b, "f0-rounds-0")[name] == "legendonly")


def test_toggle_table_console_and_picture(browser, study, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page(sections(load_material([study]), f"fedtailor report {EVIL}")))
    browser.get(file.as_uri())
    browser.execute_async_script(SETTLED)
    assert browser.title == "2 methods on digits"
    row = browser.find_element("xpath", "//section[@id='f0-comparison']//tr[td='fedavg']")
    assert [cell.text for cell in row.find_elements("tag name", "td")][1:3] == ["2", "54.00 ± 5.00"]

    assert shown(browser, "f0-rounds-0")["fedavg"] is True
    click_legend(browser, "fedavg")
    assert shown(browser, "f0-rounds-0")["fedrep"] is True
    ticks = [e.text for e in browser.find_elements("css selector", "#f0-labels-0 .ytick text")]
    assert ticks == [EVIL[:11] + "…" + EVIL[-12:], "dog"]
    buttons = browser.find_elements("css selector", "#f0-rounds-0 .modebar-btn")
    titles = {button.get_attribute("data-title") for button in buttons}
    assert len(titles) == 4
    assert not any("cloud" in title.lower() or "share" in title.lower() for title in titles)

    for width in (1400, 420):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        assert (
            browser.execute_script("return document.documentElement.scrollWidth") <= width
        )  # tables scroll, the page does not
        assert len(browser.get_screenshot_as_png()) > 20_000
    assert browser.get_log("browser") == []


def test_a_watched_run_moves_on_and_keeps_what_was_hidden(browser, study):
    with serve([study], "fedtailor watch study") as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            browser.execute_async_script(SETTLED)
            click_legend(browser, "fedavg")
            metrics = study / "b0" / "metrics.jsonl"
            last = json.loads(metrics.read_text().splitlines()[-1])
            with metrics.open("a") as file:
                file.write(json.dumps(last | {"round": 4, "accuracy": 0.99, "accuracy_mean": 0.99}) + "\n")
            cell = "//section[@id='f0-comparison']//tr[td='fedrep']/td[3]"
            waiting.WebDriverWait(browser, 30, ignored_exceptions=[STALE]).until(
                lambda b: b.find_element("xpath", cell).text == "89.00 ± 10.00"
            )
            assert shown(browser, "f0-rounds-0")["fedavg"] == "legendonly"
            assert (
                browser.execute_script("return Math.max(...document.getElementById('f0-rounds-0')._fullData.at(-1).x)")
                == 4
            )
            assert browser.get_log("browser") == []
        finally:
            server.shutdown()
            thread.join()
