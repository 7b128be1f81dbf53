"""Several runs, beside each other where there are cores for it. Each leaves its own run folder."""

from __future__ import annotations

import multiprocessing
import queue
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.read_cache import ReadCache
from metalabelnet.errors import InputError, Stopped
from metalabelnet.launch import worker
from metalabelnet.train.loop import Diverged, Progress, train
from metalabelnet.train.prepare import read
from metalabelnet.train.run_folder import Busy, RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from metalabelnet.launch.worker import Told
    from metalabelnet.train.settings import Run


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run and the folder it is to leave."""

    run: Run
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The summary of a job that came to its end, or the sentence that says why it did not.

    lost     its process was killed: the job itself may be as good as any, and can be tried again
    refused  its settings, its data or its folder will not do
    busy     … because another process is at work on it
    """

    summary: dict[str, Any] | None = None
    failure: str | None = None
    lost: bool = False
    refused: bool = False
    busy: bool = False

    @classmethod
    def of_refusal(cls, error: InputError) -> Outcome:
        """In words: an error that was raised holds what broke off."""
        return cls(failure=str(error), refused=True, busy=isinstance(error, Busy))


def train_all(
    jobs: Sequence[Job],
    *,
    resume: bool = False,
    workers: int = 1,
    on_progress: Callable[[int, Progress | None], None] | None = None,
    stop: Callable[[], bool] | None = None,
    read_cache: ReadCache | None = None,
    go_on: bool = False,
) -> list[Outcome]:
    """Train all jobs and give their outcomes, in order.

    Data that several jobs have in common is read once; `readings` has what was read before.

    Every folder is checked before the first run starts. A finished folder is not run again when resuming.
    A run that diverges is reported in its outcome and does not keep the others from going on; with `go_on` one that
    is refused does not either, such as by a setting of its method that does not go with the data.
    Every run has one thread: on small networks several processes with one thread each are faster than one with
    many, and sums in the order of one thread do not depend on how many workers there are.
    """
    for job in jobs:
        RunFolder(job.folder).check(job.run, resume=resume)
    tell, asked = on_progress or (lambda _number, _progress: None), stop or (lambda: False)
    read_cache = read_cache or ReadCache(at_a_time=min(workers, len(jobs)))
    if workers == 1 or len(jobs) == 1:
        with _one_thread():
            return [
                _work(n, job, resume=resume, tell=tell, stop=asked, read_cache=read_cache, go_on=go_on)
                for n, job in enumerate(jobs)
            ]

    left = [job.run for job in jobs if not RunFolder(job.folder).finished]
    if len(left) > 1:
        read(left[0], read_cache=read_cache)

    context = multiprocessing.get_context("spawn")
    told: multiprocessing.Queue[Told] = context.Queue()
    stopping = context.Event()
    given = (told, stopping, read_cache.to_send())
    with ProcessPoolExecutor(workers, context, initializer=worker.start, initargs=given) as pool:
        with worker.signals_wait():
            futures = [pool.submit(_work_beside, n, job, resume=resume, go_on=go_on) for n, job in enumerate(jobs)]
        while not all(future.done() for future in futures):
            _pass_on(told, tell)
            if asked():
                stopping.set()
        _pass_on(told, tell)
    return _outcomes(futures, stopped=asked())


def _outcomes(futures: Sequence[Future[Outcome]], *, stopped: bool) -> list[Outcome]:
    """What came of all of them. Where runs were stopped, one that has lost something is the one to say so."""
    outcomes, stops = [], []
    for future in futures:
        try:
            outcomes.append(_outcome(future, stopped=stopped))
        except Stopped as stop:
            stops.append(stop)
    if stops:
        raise max(stops, key=lambda stop: len(stop.args))
    return outcomes


def _outcome(future: Future[Outcome], *, stopped: bool) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        if stopped:  # whoever kills politely kills the idle workers too
            raise Stopped from None
        why = "a process was killed, perhaps for want of memory: go on with --resume and fewer --jobs"
        return Outcome(failure=why, lost=True)


def _work(
    number: int,
    job: Job,
    *,
    resume: bool,
    tell: Callable[[int, Progress | None], None],
    stop: Callable[[], bool],
    read_cache: ReadCache,
    go_on: bool,
) -> Outcome:
    files = RunFolder(job.folder)
    if stop():
        raise Stopped
    try:
        if not files.finished:
            train(
                job.run,
                folder=job.folder,
                resume=resume,
                read_cache=read_cache,
                on_progress=lambda p: tell(number, p),
                stop=stop,
            )
        outcome = Outcome(summary=files.summary())
    except Diverged as error:
        outcome = Outcome(failure=str(error))
    except InputError as error:
        if not go_on:
            raise
        outcome = Outcome.of_refusal(error)
    tell(number, None)
    return outcome


def _work_beside(number: int, job: Job, *, resume: bool, go_on: bool) -> Outcome:
    """Do the work in a worker process."""
    here = worker.this_worker()
    try:
        with here.busy():
            return _work(
                number, job, resume=resume, tell=here.tell, stop=here.stop, read_cache=here.read_cache, go_on=go_on
            )
    except OSError as error:  # so that it reaches the parent as one sentence
        raise InputError(f"{job.folder}: {error}") from None


def _pass_on(told: multiprocessing.Queue[Told], tell: Callable[[int, Progress | None], None]) -> None:
    """Pass on what the workers have told, waiting a moment for the first."""
    try:
        tell(*told.get(timeout=0.1))
        while True:
            tell(*told.get_nowait())
    except queue.Empty:
        pass


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
