"""A worker process of the pool. It trains one run after another.

On SIGTERM, which batch systems send to the whole process group, on SIGHUP of a closed terminal, and when its parent
process has ended, a worker saves a checkpoint and exits. Otherwise an orphaned worker would keep writing to a run
folder that the user resumes.
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

    from metalabelnet.train.result import Progress

ProgressMessage = tuple[int, "Progress | None"]  # number of the job, and its progress (None: it has ended)
EXIT_DELAY_SECONDS = 1.0  # after a stopped run, so that its result reaches the parent process


class Worker:
    """State of this worker process."""

    def __init__(
        self, messages: Queue[ProgressMessage], stop_event: Event, read_cache: ReadCache | None = None
    ) -> None:
        self._messages, self._stop_event = messages, stop_event
        self.read_cache = read_cache or ReadCache()
        self._is_running = self._is_exiting = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark a run as in progress: the process exits after it has saved its checkpoint, not at once."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            if self._is_exiting:
                timer = threading.Timer(EXIT_DELAY_SECONDS, os._exit, (1,))
                timer.daemon = True
                timer.start()

    def report(self, number: int, progress: Progress | None) -> None:
        """Send progress to the parent process, once per epoch."""
        if progress is None or progress.metrics is not None:
            self._messages.put((number, progress))

    def stop(self) -> bool:
        """Return whether the run must save a checkpoint and stop."""
        return self._is_exiting or self._stop_event.is_set()

    def exit(self, *_: object) -> None:
        """Exit: at once, or after the run in progress has saved a checkpoint. Also the handler of signals."""
        self._is_exiting = True
        if not self._is_running:
            os._exit(1)

    def exit_with_parent(self) -> None:
        """Wait until the parent process has ended, then exit."""
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        self.exit()


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop training: SIGINT, SIGTERM and, unless it is ignored as under nohup, SIGHUP."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


_current: list[Worker] = []


def current_worker() -> Worker:
    """Return the worker that `start_worker` created in this process."""
    return _current[0]


def start_worker(messages: Queue[ProgressMessage], stop_event: Event, read_cache: ReadCache) -> None:
    """Initialize this process as a worker: one thread; ignore SIGINT, which the parent process handles."""
    torch.set_num_threads(1)
    worker = Worker(messages, stop_event, read_cache)
    _current[:] = [worker]
    signals = stop_signals()
    for number in signals:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else worker.exit)
    threading.Thread(target=worker.exit_with_parent, daemon=True).start()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


@contextmanager
def block_signals() -> Iterator[None]:
    """Start processes with SIGINT, SIGTERM and SIGHUP blocked, until `start_worker` has set their handlers.

    Otherwise a Ctrl-C while they import torch ends them with a traceback. Blocked signals are delivered later.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
