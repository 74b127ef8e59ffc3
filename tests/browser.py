"""A real browser for tests: Debian's chromium, driven by selenium."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium.webdriver", reason="needs selenium")
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
FLAGS = (
    "headless no-sandbox disable-gpu no-first-run disable-background-networking disable-component-update disable-sync"
)
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromium-driver (Debian's packages)"),
]


def started(profile: Path, size: str = "1400,900") -> Any:
    """Start the browser; the caller quits it."""
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"user-data-dir={profile}", f"window-size={size}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    driver.set_script_timeout(120)
    return driver
