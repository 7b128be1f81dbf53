"""Concurrent runs on one GPU, interleaved step by step in one process.

One small network leaves a GPU idle between kernels and in kernels too short to fill it. Here every run has its own
CUDA stream, and the host queues one step of each run in turn, so the GPU works on all runs at the same time. Runs share
compiled code only: a concurrent run takes the same steps as a single run. In bf16 the steps agree up to rounding,
because the custom kernels use fewer SMs per run and so split their sums in another way (`engine/hopper`).

At the end of an epoch and before a checkpoint, a run queues its evaluation and lets the others continue until the GPU
has finished it. The host then works on this run alone: it evaluates, plans the next epoch, writes files. Therefore
runs start some steps apart, so that their epochs end at different times, and each run queues some steps ahead, so that
the GPU has work meanwhile. The queue is bounded, because an evaluation waits behind it.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.read_cache import ReadCache
from metalabelnet.engine import tf32_and_cudnn_benchmark
from metalabelnet.errors import DivergenceError, InputError, RunStopped
from metalabelnet.launch.process_pool import Job, Outcome
from metalabelnet.train.prepare import select_device
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.train_run import training_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from metalabelnet.train.result import Progress

START_OFFSET_STEPS = 40  # between the first steps of two runs
MAX_QUEUED_STEPS = 64  # steps of a run that the GPU has not finished
POLL_SECONDS = 1e-4  # when all runs have queued that many


@dataclass
class ConcurrentRun:
    """A run in progress with its CUDA stream.

    delay       turns to skip before the first step
    step_ends   events at the end of the last queued steps
    """

    number: int
    job: Job
    steps: Generator[None, None, Any]
    stream: torch.cuda.Stream | None
    delay: int
    keep_going: bool
    step_ends: deque[torch.cuda.Event] = field(default_factory=lambda: deque(maxlen=MAX_QUEUED_STEPS))

    @property
    def queue_is_full(self) -> bool:
        """Whether the GPU has not finished the step queued `MAX_QUEUED_STEPS` ago."""
        return len(self.step_ends) == MAX_QUEUED_STEPS and not self.step_ends[0].query()  # type: ignore[no-untyped-call]

    def step(self) -> Outcome | None:
        """Run or queue one step; return the outcome if the run has ended."""
        if self.delay:
            self.delay -= 1
            return None
        context: AbstractContextManager[Any] = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        try:
            with context:
                next(self.steps)
                if self.stream is not None:
                    self.step_ends.append(self.stream.record_event())
        except StopIteration:
            return Outcome(summary=RunFolder(self.job.folder).summary())
        except DivergenceError as error:
            return Outcome(failure=str(error))
        except InputError as error:
            if not self.keep_going:
                raise
            return Outcome.from_input_error(error)
        return None


def train_concurrently(
    jobs: Sequence[Job],
    *,
    concurrent: int = 8,
    resume: bool = False,
    on_progress: Callable[[int, Progress | None], None] | None = None,
    stop: Callable[[], bool] | None = None,
    checkpoint_seconds: float = 60.0,
    read_cache: ReadCache | None = None,
    keep_going: bool = False,
) -> list[Outcome]:
    """Train all jobs on one device, up to `concurrent` at a time.

    Every folder is checked before the first run starts. Finished folders are not trained again. Data that several jobs
    share is read once. A run that diverges is reported in its outcome, and the others continue.

    Parameters
    ----------
    jobs : sequence of Job
        Runs with their folders.
    concurrent : int, default 8
        Maximum number of runs in progress.
    resume : bool, default False
        Resume runs that are in progress.
    on_progress : callable, optional
        Called with the number of the job and its progress; with None when the job has ended.
    stop : callable, optional
        Checked after every step. If it returns True, all runs save a checkpoint and `RunStopped` is raised.
    checkpoint_seconds : float, default 60
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
    concurrent_runs = min(concurrent, len(jobs))  # includes finished jobs, so that resuming changes nothing
    read_cache = read_cache or ReadCache(concurrent_runs=concurrent_runs)
    outcomes = [_outcome_if_finished(job) for job in jobs]
    report = on_progress or (lambda _number, _progress: None)

    def start(number: int, job: Job) -> ConcurrentRun:
        steps = training_steps(
            job.run,
            folder=job.folder,
            resume=resume,
            read_cache=read_cache,
            on_progress=lambda progress: report(number, progress),
            stop=stop,
            checkpoint_seconds=checkpoint_seconds,
            concurrent_runs=concurrent_runs,
        )
        on_cuda = select_device(job.run).type == "cuda"
        stream = torch.cuda.Stream() if on_cuda else None  # type: ignore[no-untyped-call]
        delay = START_OFFSET_STEPS * number if on_cuda and number < concurrent else 0
        return ConcurrentRun(number, job, steps, stream, delay, keep_going)

    waiting = [(number, job) for number, job in enumerate(jobs) if outcomes[number] is None]
    running: list[ConcurrentRun] = []
    stopped: RunStopped | None = None
    with tf32_and_cudnn_benchmark():
        while running or (waiting and stopped is None):
            while waiting and len(running) < concurrent and stopped is None:
                running.append(start(*waiting.pop(0)))
            first_is_full = running[0].queue_is_full  # delays count the steps of the first run
            ready = [one for one in running if not one.queue_is_full and not (first_is_full and one.delay)]
            if not ready:
                time.sleep(POLL_SECONDS)
            for one in ready:
                try:
                    outcome = one.step()
                except RunStopped as error:
                    # Keep an error with a message: it names what could not be saved.
                    stopped = stopped if stopped is not None and stopped.args else error
                    running.remove(one)
                    continue
                if outcome is not None:
                    outcomes[one.number] = outcome
                    running.remove(one)
                    report(one.number, None)
    if stopped is not None:
        raise stopped
    return [outcome for outcome in outcomes if outcome is not None]


def _outcome_if_finished(job: Job) -> Outcome | None:
    files = RunFolder(job.folder)
    return Outcome(summary=files.summary()) if files.finished else None
