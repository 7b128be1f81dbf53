"""Fixture: Chromium for browser tests."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Chromium from PATH. Without it the tests are skipped, or fail in CI."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    problem = None if executable else f"none of {', '.join(BROWSERS)} is on PATH (Debian: apt-get install chromium)"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        problem = "playwright is not installed"
    if problem is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()
