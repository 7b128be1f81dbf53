"""`metalabelnet review` in a subprocess, and its page in Chromium."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ReviewServer:
    """`metalabelnet review` in a subprocess."""

    def __init__(self, source: Path, *more: str, **environment: str) -> None:
        arguments = [sys.executable, "-m", "metalabelnet", "review", str(source), *more]
        self.process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.base = self.address.partition("/?")[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)


def open_page(chromium: Any, server: ReviewServer, **context_options: Any) -> Any:
    """Open the page of the server; console errors are collected in `page.errors`."""
    page = chromium.new_context(**context_options).new_page()
    page.errors = []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(server.address)
    page.wait_for_selector("h1")
    page.wait_for_load_state()  # style sheet and scripts load after the heading
    return page


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until the condition is true. Playwright's own wait needs eval, which the page forbids."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"condition still false after {seconds} s"
        time.sleep(0.02)


def press_and_wait(page: Any, key: str) -> None:
    """Press a key that adds a verdict and wait for the response."""
    with page.expect_response(lambda response: "/verdict" in response.url or "/undo" in response.url):
        page.keyboard.press(key)
