"""`metalabelnet review` in a process of its own, and its page in Chromium."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ReviewServer:
    """`metalabelnet review` in a new process."""

    def __init__(self, source: Path, *more: str, **environment: str) -> None:
        arguments = [sys.executable, "-m", "metalabelnet", "review", str(source), *more]
        process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        assert process.stdout is not None
        self.pid, self.out, self.wait = process.pid, process.stdout, process.wait
        self.address = self.out.readline().strip()
        self.base = self.address.partition("/?")[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end of the process; nothing is done if it has ended."""
        if self.out.closed:
            return
        os.kill(self.pid, number)
        self.out.read()  # until the process ends
        self.out.close()
        self.wait(30)


class ForkedReviewServer(ReviewServer):
    """`metalabelnet review` in a forked process, which starts two seconds earlier than a new one."""

    def __init__(self, forker: "ReviewForker", source: Path, *more: str) -> None:
        self.pid, self.out = forker.start(["review", str(source), *more])
        self.wait = lambda _seconds: 0
        self.address = self.out.readline().strip()
        self.base = self.address.partition("/?")[0]


class ReviewForker:
    """A process that has imported the review page and forks for every server; see review_fork_server.py."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, pipe = folder, 0, subprocess.PIPE
        program = [sys.executable, str(Path(__file__).with_name("review_fork_server.py"))]
        self.process = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True)
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def start(self, arguments: list[str]) -> tuple[int, Any]:
        """Start a command; return its process id and its standard output."""
        self.count += 1
        out = self.folder / f"out{self.count}"
        os.mkfifo(out)
        assert self.process.stdin is not None
        print(json.dumps({"arguments": arguments, "out": str(out)}), file=self.process.stdin, flush=True)
        return int(self._read()), out.open(encoding="utf-8")

    def close(self) -> None:
        self.process.communicate()


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
