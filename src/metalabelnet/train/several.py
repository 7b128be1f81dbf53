"""Several runs, beside each other where there are cores for it. Each leaves its own run folder."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.errors import InputError
from metalabelnet.train.folder import RunFolder
from metalabelnet.train.loop import Diverged, Progress, Stopped, train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from metalabelnet.train.settings import Run

Told = tuple[int, Progress | None]  # the number of the run, and how far it is (None: it has ended)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run and the folder it is to leave."""

    run: Run
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The summary of a job that came to its end, or the sentence that says why it did not."""

    summary: dict[str, Any] | None = None
    failure: str | None = None


def train_all(
    jobs: Sequence[Job],
    *,
    resume: bool = False,
    workers: int = 1,
    on_progress: Callable[[int, Progress | None], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Outcome]:
    """Train all jobs and give their outcomes, in order.

    Every folder is checked before the first run starts. A finished folder is not run again when resuming.
    A run that diverges is reported in its outcome and does not keep the others from going on.
    Several workers are processes with one thread each: on small networks that is faster than one
    process with many threads, and what comes out does not depend on how many there are.
    """
    for job in jobs:
        RunFolder(job.folder).check(job.run, resume=resume)
    tell = on_progress or (lambda _number, _progress: None)
    if workers == 1 or len(jobs) == 1:
        return [_work(n, job, resume=resume, tell=tell, stop=stop or (lambda: False)) for n, job in enumerate(jobs)]

    context = multiprocessing.get_context("spawn")
    told: multiprocessing.Queue[Told] = context.Queue()
    stopping = context.Event()
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(told, stopping)) as pool:
        futures = [pool.submit(_work_beside, n, job, resume=resume) for n, job in enumerate(jobs)]
        while not all(future.done() for future in futures):
            _pass_on(told, tell)
            if stop is not None and stop() and not stopping.is_set():
                stopping.set()
                for future in futures:
                    future.cancel()
        _pass_on(told, tell)
    return [_outcome(future) for future in futures]


def _outcome(future: Future[Outcome]) -> Outcome:
    if future.cancelled():
        raise Stopped
    return future.result()


def _work(
    number: int, job: Job, *, resume: bool, tell: Callable[[int, Progress | None], None], stop: Callable[[], bool]
) -> Outcome:
    files = RunFolder(job.folder)
    if stop():
        raise Stopped
    try:
        if not files.finished:
            train(job.run, folder=job.folder, resume=resume, on_progress=lambda p: tell(number, p), stop=stop)
    except Diverged as error:
        return Outcome(failure=str(error))
    finally:
        tell(number, None)
    return Outcome(summary=files.summary())


def _pass_on(told: multiprocessing.Queue[Told], tell: Callable[[int, Progress | None], None]) -> None:
    """Pass on what the workers have told, waiting a moment for the first."""
    try:
        tell(*told.get(timeout=0.1))
        while True:
            tell(*told.get_nowait())
    except queue.Empty:
        pass


_worker: dict[str, Any] = {}


def _start_worker(told: multiprocessing.Queue[Told], stopping: Any) -> None:
    """One thread, and deaf to Ctrl-C: the parent hears it and says when to stop."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker.update(told=told, stopping=stopping)


def _work_beside(number: int, job: Job, *, resume: bool) -> Outcome:
    def tell(number: int, progress: Progress | None) -> None:
        if progress is None or progress.metrics is not None:  # an epoch is news enough to send
            _worker["told"].put((number, progress))

    try:
        return _work(number, job, resume=resume, tell=tell, stop=_worker["stopping"].is_set)
    except OSError as error:  # so that it reaches the parent as one sentence
        raise InputError(f"{job.folder}: {error}") from None
