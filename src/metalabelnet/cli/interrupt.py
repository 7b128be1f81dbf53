"""Handling of Ctrl-C, SIGTERM and SIGHUP (a closed terminal) during training."""

from __future__ import annotations

import errno
import os
import signal
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from metalabelnet.launch.torchrun import rank_and_size
from metalabelnet.launch.worker import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C, SIGTERM or SIGHUP; a second signal raises KeyboardInterrupt.

    SIGHUP does not count as the second: a terminal that closes may send it after SIGTERM. Where it is ignored, as
    under nohup, it stays ignored.
    """
    signals: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _detach_from_terminal()
        elif signals:
            raise KeyboardInterrupt
        if not signals and rank_and_size()[1] == 1:  # torchrun sends a signal to the other ranks when one is lost
            with suppress(OSError):  # `print` is not reentrant, and the signal may arrive during one
                os.write(2, b"stopping after this step\n")
        signals.append(number)

    previous = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def ignore_closed_terminal() -> Iterator[None]:
    """Ignore that a terminal is closed before SIGHUP arrives: the run must be able to save its progress.

    If the failed writes were part of handling another exception, that one is raised.
    """
    try:
        yield
    except OSError as error:
        cause: BaseException | None = error
        while isinstance(cause, OSError) and cause.errno == errno.EIO:
            cause = cause.__context__
        if cause is error:
            raise
        if cause is not None:
            raise cause from None


def _detach_from_terminal() -> None:
    """Discard what is printed on a terminal from now on: it is closed, and a write to it would be an error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
