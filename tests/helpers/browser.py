"""A real browser for the tests of pages."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Chromium from PATH. Without one its tests are skipped, but fail in CI, where it must be there."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    absent = None if found else f"there is no {', '.join(BROWSERS)} on PATH (Debian: apt-get install chromium)"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent = "playwright is not installed"
    if absent is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(absent)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
