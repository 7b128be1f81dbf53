"""Several runs on one card, step by step in turns.

One small network leaves much of a card idle: between kernels, and in kernels too short to fill it. Here every run has
a CUDA stream of its own, and the host gives each one step in turn; the card works on all of them at the same time.
Runs share nothing but compiled code, so that a run trained in company takes the steps it would take alone; in bfloat16
but for rounding, as kernels of our own add up in other parts there (see `engine/hopper/company.py`).

At the end of an epoch a run asks the card for all it is judged by and lets the others have their turns until that is
there; so it does before a checkpoint. Then the host is busy with this run alone for a while: it draws, judges, writes.
Runs start some steps apart, so that their epochs do not end at the same time, and the others are given some steps
ahead, so that the card has enough to do meanwhile. Not more than some: what an evaluation starts is behind them.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.read_cache import ReadCache
from metalabelnet.engine import tensor_cores
from metalabelnet.errors import InputError, Stopped
from metalabelnet.launch.process_pool import Job, Outcome
from metalabelnet.train.loop import Diverged, Progress, training
from metalabelnet.train.prepare import device_of
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

APART = 40  # steps
AHEAD = 64  # steps a run is given before the card has taken them
PAUSE = 1e-4  # seconds, when all have been given so many


@dataclass
class Turns:
    """A run under way, the stream its work goes to, and how many turns it still lets pass before its first step."""

    number: int
    job: Job
    steps: Generator[None, None, Any]
    stream: torch.cuda.Stream | None
    wait: int
    go_on: bool
    given: deque[torch.cuda.Event] = field(default_factory=lambda: deque(maxlen=AHEAD))  # the last steps' ends

    @property
    def ahead(self) -> bool:
        """Whether the card has yet to come to the step that was given so many before."""
        return len(self.given) == AHEAD and not self.given[0].query()  # type: ignore[no-untyped-call]

    def take(self) -> Outcome | None:
        """One step. Gives the outcome, if it was the last."""
        if self.wait:
            self.wait -= 1
            return None
        here: AbstractContextManager[Any] = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        try:
            with here:
                next(self.steps)
                if self.stream is not None:
                    self.given.append(self.stream.record_event())
        except StopIteration:
            return Outcome(summary=RunFolder(self.job.folder).summary())
        except Diverged as error:
            return Outcome(failure=str(error))
        except InputError as error:
            if not self.go_on:
                raise
            return Outcome.of_refusal(error)
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
    go_on: bool = False,
) -> list[Outcome]:
    """Train all jobs, up to `together` at a time, and give their outcomes in order.

    Data that several jobs have in common is read once; `readings` has what was read before.

    Every folder is checked before the first run starts. A finished folder is not run again when resuming. A run that
    diverges is reported in its outcome and does not keep the others from going on; with `go_on` one that is refused
    does not either. When asked to stop, all runs under way save their state before `Stopped` is raised.
    """
    for job in jobs:
        RunFolder(job.folder).check(job.run, resume=resume)
    read_cache = read_cache or ReadCache(at_a_time=min(concurrent, len(jobs)))
    outcomes = [_known(job) for job in jobs]
    tell = on_progress or (lambda _number, _progress: None)

    def start(number: int, job: Job) -> Turns:
        steps = training(
            job.run,
            folder=job.folder,
            resume=resume,
            read_cache=read_cache,
            on_progress=lambda progress: tell(number, progress),
            stop=stop,
            checkpoint_seconds=checkpoint_seconds,
            concurrent_runs=min(
                concurrent, len(jobs)
            ),  # those that had ended before count too: going on changes nothing
        )
        cuda = device_of(job.run).type == "cuda"
        stream = torch.cuda.Stream() if cuda else None  # type: ignore[no-untyped-call]
        wait = APART * number if cuda and number < concurrent else 0
        return Turns(number, job, steps, stream, wait, go_on)

    waiting = [(number, job) for number, job in enumerate(jobs) if outcomes[number] is None]
    under_way: list[Turns] = []
    stopped: Stopped | None = None
    with tensor_cores():
        while under_way or (waiting and stopped is None):
            while waiting and len(under_way) < concurrent and stopped is None:
                under_way.append(start(*waiting.pop(0)))
            idle = under_way[0].ahead  # its steps are those that others wait for
            ready = [turns for turns in under_way if not turns.ahead and not (idle and turns.wait)]
            if not ready:
                time.sleep(PAUSE)
            for turns in ready:
                try:
                    outcome = turns.take()
                except Stopped as error:
                    stopped = stopped if stopped is not None and stopped.args else error  # what is lost is to be said
                    under_way.remove(turns)
                    continue
                if outcome is not None:
                    outcomes[turns.number] = outcome
                    under_way.remove(turns)
                    tell(turns.number, None)
    if stopped is not None:
        raise stopped
    return [outcome for outcome in outcomes if outcome is not None]


def _known(job: Job) -> Outcome | None:
    files = RunFolder(job.folder)
    return Outcome(summary=files.summary()) if files.finished else None
