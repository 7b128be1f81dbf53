"""Handling of Ctrl-C and SIGTERM during training."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or SIGTERM; a second signal raises KeyboardInterrupt."""
    signals: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        os.write(2, b"stopping after this step\n")  # `print` is not reentrant, and the signal may arrive during one

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
