"""The program as a user starts it, and a page on it in a real browser."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Program:
    """`metalabelnet review`, as a user starts it."""

    def __init__(self, source: Path, *more: str) -> None:
        arguments = [sys.executable, "-m", "metalabelnet", "review", str(source), *more]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.base = self.address.partition("/?")[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)


def opened(chromium: Any, program: Program, **about: Any) -> Any:
    """A page on the program; what the browser complains of ends the test."""
    page = chromium.new_context(**about).new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(program.address)
    page.wait_for_selector("h1")
    page.wait_for_load_state()  # the heading is there before the style and the scripts are
    return page


def until(what: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until it is so. The page's policy forbids playwright's own way, which makes code of text."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def press_and_wait(page: Any, key: str) -> None:
    """Press a key that gives a verdict, and wait until the server has it."""
    with page.expect_response(lambda answer: "/verdict" in answer.url or "/undo" in answer.url):
        page.keyboard.press(key)
