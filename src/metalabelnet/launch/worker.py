"""One of several processes that train runs beside each other: started once, given one run after another.

It saves what is under way and leaves when it is politely killed, as the batch system does with the whole group of
processes, and when its parent is gone: a run that nobody hears of must not go on writing to a folder that
somebody resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from metalabelnet.data.read_cache import ReadCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

    from metalabelnet.train.loop import Progress

Told = tuple[int, "Progress | None"]  # the number of the run, and how far it is (None: it has ended)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TIME_TO_ANSWER = 1.0  # seconds


class Worker:
    """The process this is, seen from its runs."""

    def __init__(self, told: Queue[Told], stopping: Event, read_cache: ReadCache | None = None) -> None:
        self._told, self._stopping = told, stopping
        self.read_cache = read_cache or ReadCache()
        self._busy = self._leaving = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a run is under way it is asked to stop; after it the process is free to go."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            if self._leaving:
                leave = threading.Timer(TIME_TO_ANSWER, os._exit, (1,))
                leave.daemon = True
                leave.start()

    def tell(self, number: int, progress: Progress | None) -> None:
        """Tell the parent; an epoch is news enough to send."""
        if progress is None or progress.metrics is not None:
            self._told.put((number, progress))

    def stop(self) -> bool:
        """Whether the run is to save its state and stop."""
        return self._leaving or self._stopping.is_set()

    def leave(self, *_: object) -> None:
        """Go: at once, or when the run has saved its state."""
        self._leaving = True
        if not self._busy:
            os._exit(1)

    def leave_with_the_parent(self) -> None:
        """Wait for the end of the parent, and go."""
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        self.leave()


_here: list[Worker] = []


def this_worker() -> Worker:
    """The worker that `start` made."""
    return _here[0]


def start(told: Queue[Told], stopping: Event, read_cache: ReadCache) -> None:
    """Make this process a worker: one thread, and deaf to Ctrl-C, because the parent hears it."""
    torch.set_num_threads(1)
    worker = Worker(told, stopping, read_cache)
    _here[:] = [worker]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.leave)
    threading.Thread(target=worker.leave_with_the_parent, daemon=True).start()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Processes started here are born with these signals blocked, until `start` has said what they mean.

    Otherwise a Ctrl-C in their first seconds, while they import torch, ends them with a traceback. What comes
    meanwhile is not lost.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
