"""Train several runs in a process pool. Each run has its own run folder."""

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
from metalabelnet.errors import DivergenceError, InputError, RunStopped
from metalabelnet.launch import worker
from metalabelnet.nets.external import user_code_errors
from metalabelnet.train.folder_lock import RunBusyError
from metalabelnet.train.prepare import read_data
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.train_run import train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from metalabelnet.launch.worker import ProgressMessage
    from metalabelnet.train.result import Progress
    from metalabelnet.train.settings import Run

PROGRESS_TIMEOUT_SECONDS = 0.1  # how long to wait for a message before checking for a stop


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run and its folder."""

    run: Run
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The summary of a finished job, or the reason why it failed.

    killed    its process was killed, or ended with an unexpected error; the job may succeed if it is resumed
    rejected  its settings, data or folder cannot be used
    busy      rejected because another process is training in its folder
    """

    summary: dict[str, Any] | None = None
    failure: str | None = None
    killed: bool = False
    rejected: bool = False
    busy: bool = False

    @classmethod
    def from_input_error(cls, error: InputError) -> Outcome:
        """Return the outcome of a rejected job. It has the message only: the error would keep the run in memory."""
        return cls(failure=str(error), rejected=True, busy=isinstance(error, RunBusyError))


def train_all(
    jobs: Sequence[Job],
    *,
    resume: bool = False,
    workers: int = 1,
    on_progress: Callable[[int, Progress | None], None] | None = None,
    stop: Callable[[], bool] | None = None,
    checkpoint_seconds: float = 10.0,
    read_cache: ReadCache | None = None,
    keep_going: bool = False,
) -> list[Outcome]:
    """Train all jobs in `workers` processes.

    Every folder is checked before the first run starts. Finished folders are not trained again. Data that several jobs
    share is read once. A run that diverges is reported in its outcome, and the others continue. Every run uses one
    thread: for small networks several processes with one thread each are faster than one process with many, and the
    result does not depend on the number of workers.

    Parameters
    ----------
    jobs : sequence of Job
        Runs with their folders.
    resume : bool, default False
        Resume runs that are in progress.
    workers : int, default 1
        Number of processes; with 1 the jobs run in this process.
    on_progress : callable, optional
        Called with the number of the job and its progress; with None when the job has ended.
    stop : callable, optional
        Checked repeatedly. If it returns True, all runs save a checkpoint and `RunStopped` is raised.
    checkpoint_seconds : float, default 10
        Time between checkpoints of a run.
    read_cache : ReadCache, optional
        Data that was read already.
    keep_going : bool, default False
        Report an InputError of a run in its outcome, too, instead of raising it.

    Returns
    -------
    list of Outcome
        In the order of the jobs.
    """
    for job in jobs:
        RunFolder(job.folder).check(job.run, resume=resume)
    report, should_stop = on_progress or (lambda _number, _progress: None), stop or (lambda: False)
    read_cache = read_cache or ReadCache(concurrent_runs=min(workers, len(jobs)))
    if workers == 1 or len(jobs) == 1:
        with _one_thread():
            return [
                run_job(
                    number,
                    job,
                    resume=resume,
                    report=report,
                    stop=should_stop,
                    checkpoint_seconds=checkpoint_seconds,
                    read_cache=read_cache,
                    keep_going=keep_going,
                )
                for number, job in enumerate(jobs)
            ]

    unfinished = [job.run for job in jobs if not RunFolder(job.folder).finished]
    if len(unfinished) > 1:
        read_data(unfinished[0], read_cache=read_cache)

    context = multiprocessing.get_context("spawn")
    messages: multiprocessing.Queue[ProgressMessage] = context.Queue()
    stop_event = context.Event()
    worker_args = (messages, stop_event, read_cache.for_subprocess())
    with ProcessPoolExecutor(workers, context, initializer=worker.start_worker, initargs=worker_args) as pool:
        with worker.block_signals():
            futures = [
                pool.submit(
                    _run_job_in_worker,
                    number,
                    job,
                    resume=resume,
                    checkpoint_seconds=checkpoint_seconds,
                    keep_going=keep_going,
                )
                for number, job in enumerate(jobs)
            ]
        while not all(future.done() for future in futures):
            _forward_progress(messages, report)
            if should_stop():
                stop_event.set()
        _forward_progress(messages, report)
    return _collect_outcomes(futures, stopped=should_stop())


def _collect_outcomes(futures: Sequence[Future[Outcome]], *, stopped: bool) -> list[Outcome]:
    """Return all outcomes, or raise RunStopped, if possible the one that names what could not be saved."""
    outcomes, errors = [], []
    for future in futures:
        try:
            outcomes.append(_outcome(future, stopped=stopped))
        except RunStopped as error:
            errors.append(error)
    if errors:
        raise max(errors, key=lambda error: len(error.args))
    return outcomes


def _outcome(future: Future[Outcome], *, stopped: bool) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        if stopped:  # a SIGTERM to the process group also ends idle workers
            raise RunStopped from None
        reason = "a worker process was killed, perhaps because memory ran out: resume with --resume and fewer --jobs"
        return Outcome(failure=reason, killed=True)


def run_job(
    number: int,
    job: Job,
    *,
    resume: bool,
    report: Callable[[int, Progress | None], None],
    stop: Callable[[], bool],
    checkpoint_seconds: float,
    read_cache: ReadCache,
    keep_going: bool,
) -> Outcome:
    """Train one job in this process, unless it is finished."""
    files = RunFolder(job.folder)
    if stop():
        raise RunStopped
    try:
        if not files.finished:
            with user_code_errors(job.run.net):
                train(
                    job.run,
                    folder=job.folder,
                    resume=resume,
                    read_cache=read_cache,
                    on_progress=lambda progress: report(number, progress),
                    stop=stop,
                    checkpoint_seconds=checkpoint_seconds,
                )
        outcome = Outcome(summary=files.summary())
    except DivergenceError as error:
        outcome = Outcome(failure=str(error))
    except InputError as error:
        if not keep_going:
            raise
        outcome = Outcome.from_input_error(error)
    report(number, None)
    return outcome


def _run_job_in_worker(number: int, job: Job, *, resume: bool, checkpoint_seconds: float, keep_going: bool) -> Outcome:
    """Train one job in a worker process."""
    this = worker.current_worker()
    try:
        with this.running():
            return run_job(
                number,
                job,
                resume=resume,
                report=this.report,
                stop=this.stop,
                checkpoint_seconds=checkpoint_seconds,
                read_cache=this.read_cache,
                keep_going=keep_going,
            )
    except OSError as error:  # the parent process prints an InputError as one line
        raise InputError(f"{job.folder}: {error}") from None


def _forward_progress(
    messages: multiprocessing.Queue[ProgressMessage], report: Callable[[int, Progress | None], None]
) -> None:
    """Pass the messages of the workers to `report`; wait a moment for the first."""
    try:
        report(*messages.get(timeout=PROGRESS_TIMEOUT_SECONDS))
        while True:
            report(*messages.get_nowait())
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
