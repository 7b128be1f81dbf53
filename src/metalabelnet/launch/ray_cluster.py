"""Train several runs on a Ray cluster, with the interface of the process pool.

A job is a Ray task, and its run folder is on a file system that all nodes share. Ray starts a task again if its worker
process or its node is lost; the task resumes the run folder from its checkpoint. A finished folder is not trained
again. So a task can be repeated at any time, and the result does not depend on how often it was.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.benchmarks.download import FOLDER_VARIABLE
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.errors import InputError, RunStopped, import_package
from metalabelnet.launch.mailbox import Mailbox, Sender
from metalabelnet.launch.process_pool import Job, Outcome, run_job
from metalabelnet.launch.worker import stop_signals
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from metalabelnet.train.result import Progress

MAX_RETRIES = 3  # of a run whose worker process or node was lost
CONNECT_SECONDS = 10.0  # Ray itself tries for two minutes
POLL_SECONDS = 0.2  # how long to wait for a task before checking for messages and a stop
VISIBLE_SECONDS = 60.0  # a network file system may show new files that late
NODE_ADDRESSES = ("auto", "local")  # of Ray; others are HOST:PORT


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """What a worker needs from the process that sent a task."""

    directory: str
    data_folder: str | None
    runs_per_node: int


def _train_in_worker(
    number: int, job: Job, sent: _Sent, mailbox: Any, checkpoint_seconds: float
) -> Outcome | RunStopped:
    """Train one job in a worker process of Ray. All errors are returned, because Ray would wrap them."""
    sender = Sender(importlib.import_module("ray"), mailbox)
    try:
        torch.set_num_threads(1)  # as in the process pool, so that results have the same bytes
        if sent.data_folder is not None:
            os.environ[FOLDER_VARIABLE] = sent.data_folder
        _enter(sent.directory, job.folder.parent)
        sender.report(number, None)  # it has started: it saves a checkpoint if all runs are stopped
        return run_job(
            number,
            job,
            resume=True,  # the folder was checked; an earlier try of this task may have left a checkpoint
            report=sender.report,
            stop=sender.stop,
            checkpoint_seconds=checkpoint_seconds,
            read_cache=ReadCache(concurrent_runs=sent.runs_per_node),
            keep_going=True,
        )
    except RunStopped as stopped:
        return stopped
    except InputError as error:
        return Outcome.from_input_error(error)
    except Exception as error:
        traceback.print_exc()  # into the logs of Ray
        reason = " ".join(str(error).split())[:300]
        return Outcome(failure=f"{type(error).__name__}: {reason}", killed=True)


def _enter(directory: str, folder: Path) -> None:
    """Enter the working directory of the command; raise InputError if this node does not see its folders."""
    try:
        os.chdir(directory)
    except OSError:
        raise _not_shared_error(directory) from None
    if not folder.is_dir():
        raise _not_shared_error(str(folder))


def _not_shared_error(folder: str) -> InputError:
    return InputError(
        f"the node {socket.gethostname()} does not see {folder}: put run folders and data on a file system that all "
        "nodes of the cluster share"
    )


class RayCluster:
    """A connection to Ray, made by `connect`.

    Parameters
    ----------
    ray : module
        The package, which is initialized.
    name : str
        The cluster in messages: the value of `--cluster`.
    cpus_per_run, gpus_per_run : int, float
        What Ray reserves for each run.
    runs_by_node : list of int
        How many runs each node can train at the same time.
    """

    def __init__(
        self, ray: Any, *, name: str, cpus_per_run: int, gpus_per_run: float, runs_by_node: Sequence[int]
    ) -> None:
        self._ray, self._name = ray, name
        self.cpus_per_run, self.gpus_per_run = cpus_per_run, gpus_per_run
        self.runs_by_node = runs_by_node

    @property
    def workers(self) -> int:
        """The number of runs that all nodes can train at the same time."""
        return sum(self.runs_by_node)

    def __str__(self) -> str:
        nodes = len(self.runs_by_node)
        return f"up to {self.workers} in parallel on {nodes} node{'s' if nodes > 1 else ''} of {self._name}"

    def train_all(
        self,
        jobs: Sequence[Job],
        *,
        resume: bool = False,
        on_progress: Callable[[int, Progress | None], None] | None = None,
        stop: Callable[[], bool] | None = None,
        checkpoint_seconds: float = 10.0,
    ) -> list[Outcome]:
        """Train all jobs on the cluster.

        Every folder is checked before the first run starts. Finished folders are not trained again. A run that
        diverges, is rejected or loses its worker more than `MAX_RETRIES` times is reported in its outcome, and the
        others continue.

        Parameters
        ----------
        jobs : sequence of Job
            Runs with their folders.
        resume : bool, default False
            Resume runs that are in progress.
        on_progress : callable, optional
            Called with the number of the job and its progress; with None when the job has ended.
        stop : callable, optional
            Checked repeatedly. If it returns True, all runs save a checkpoint and `RunStopped` is raised.
        checkpoint_seconds : float, default 10
            Time between checkpoints of a run.

        Returns
        -------
        list of Outcome
            In the order of the jobs.
        """
        for job in jobs:
            RunFolder(job.folder).check(job.run, resume=resume)
        report, should_stop = on_progress or (lambda _number, _progress: None), stop or (lambda: False)
        outcomes: dict[int, Outcome] = {}
        for number, job in enumerate(jobs):
            if RunFolder(job.folder).finished:
                outcomes[number] = Outcome(summary=RunFolder(job.folder).summary())
                report(number, None)
        stopped: list[RunStopped] = []
        unfinished = [number for number in range(len(jobs)) if number not in outcomes]
        for number, result in self._results(jobs, unfinished, report, should_stop, checkpoint_seconds):
            if isinstance(result, RunStopped):
                stopped.append(result)
                continue
            outcomes[number] = result
            report(number, None)
        if stopped:
            raise max(stopped, key=lambda error: len(error.args))  # if possible the one that names what was not saved
        return [outcomes[number] for number in range(len(jobs))]

    def _results(
        self,
        jobs: Sequence[Job],
        unfinished: Sequence[int],
        report: Callable[[int, Progress | None], None],
        should_stop: Callable[[], bool],
        checkpoint_seconds: float,
    ) -> Iterator[tuple[int, Outcome | RunStopped]]:
        """Start a task for each unfinished job; yield its number and result when it has ended."""
        ray = self._ray
        # Restarts are not limited: the mailbox may be on a node that is lost.
        mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
        sent = _Sent(
            directory=str(Path.cwd()),
            data_folder=os.environ.get(FOLDER_VARIABLE),
            runs_per_node=min(max(self.runs_by_node), max(1, len(unfinished))),
        )
        numbers = {
            self._start(number, jobs[number], sent, mailbox, checkpoint_seconds): number for number in unfinished
        }
        waiting, started = list(numbers), set[int]()
        while waiting:
            ended, waiting = ray.wait(waiting, timeout=POLL_SECONDS)
            stopping = should_stop()
            for number, progress in ray.get(mailbox.collect.remote(stopping)):
                started.add(number)
                if progress is not None:
                    report(number, progress)
            yield from ((numbers[task], self._result(task, jobs[numbers[task]])) for task in ended)
            for task in waiting if stopping else ():
                if numbers[task] not in started:  # those that have started save a checkpoint
                    ray.cancel(task)

    def _start(self, number: int, job: Job, sent: _Sent, mailbox: Any, checkpoint_seconds: float) -> Any:
        """Start the task that trains a job, as soon as a node can; Ray repeats it if its worker is lost."""
        job.folder.parent.mkdir(parents=True, exist_ok=True)  # every node must see it
        task = self._ray.remote(_train_in_worker).options(
            num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run, max_retries=MAX_RETRIES
        )
        return task.remote(number, job, sent, mailbox, checkpoint_seconds)

    def _result(self, reference: Any, job: Job) -> Outcome | RunStopped:
        """Return what a task returned, or the outcome of one that was lost."""
        errors = self._ray.exceptions
        try:
            result: Outcome | RunStopped = self._ray.get(reference)
        except errors.TaskCancelledError:
            return RunStopped()
        except errors.WorkerCrashedError:
            reason = f"its worker process was killed {MAX_RETRIES + 1} times, perhaps because memory ran out"
            return Outcome(failure=f"{reason}: resume it with fewer runs per node", killed=True)
        except errors.RayError as error:
            reason = " ".join(str(error).split())[:300]
            return Outcome(failure=f"Ray could not train it ({type(error).__name__}: {reason})", killed=True)
        if isinstance(result, Outcome) and result.summary is not None and not _becomes_visible(job):
            failure = str(_not_shared_error(str(job.folder)))
            return Outcome(failure=failure, rejected=True)
        return result


def _becomes_visible(job: Job) -> bool:
    """Return whether the finished run folder is seen here; wait for file systems that show it later."""
    until = time.monotonic() + VISIBLE_SECONDS
    while not RunFolder(job.folder).finished:
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def connect(
    cluster: str | None, *, device: str = "auto", cpus_per_run: int = 1, gpus_per_run: float | None = None
) -> Iterator[RayCluster | None]:
    """Connect to a cluster for the duration of the context.

    Parameters
    ----------
    cluster : str or None
        `ray`: the cluster that runs on this machine, else a local one that ends with the context. `ray:ADDRESS`: the
        cluster at this address. None: no cluster; the context has None.
    device : str, default "auto"
        The device of the runs. With "cpu" they take no GPU.
    cpus_per_run : int, default 1
        CPU cores for each run.
    gpus_per_run : float, optional
        Share of a GPU for each run. Default: 1 if the cluster has GPUs, else 0.

    Raises
    ------
    InputError
        If Ray is not installed, the cluster cannot be reached, or no node can train a run.
    """
    if cluster is None:
        yield None
        return
    kind, _, address = cluster.partition(":")
    if kind != "ray":
        raise InputError(f"unknown cluster {cluster!r}: choose ray, or ray:ADDRESS")
    if gpus_per_run is not None and not 0 < gpus_per_run <= 1:
        raise InputError(f"gpus-per-run {gpus_per_run:g} is not in (0, 1]: a run uses one GPU or a share of it")
    ray = import_package("ray", "cluster", f"--cluster {cluster}")
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address and address not in NODE_ADDRESSES:
        _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with _keep_signal_handlers():
            ray.init(address=address or None, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise InputError(
            f"--cluster {cluster}: Ray cannot be reached or started ({reason}); correct the address, or train without "
            "--cluster"
        ) from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if gpus_per_run is None:
            gpus_per_run = 1.0 if device != "cpu" and any(node.get("GPU") for node in nodes) else 0.0
        runs_by_node = [n for node in nodes if (n := _runs_of_node(node, cpus_per_run, gpus_per_run))]
        if not runs_by_node:
            raise InputError(
                f"--cluster {cluster}: a run takes {cpus_per_run} CPU cores and {gpus_per_run:g} GPUs, and no node has "
                "as many: choose smaller --workers or --gpus-per-run"
            )
        yield RayCluster(
            ray, name=cluster, cpus_per_run=cpus_per_run, gpus_per_run=gpus_per_run, runs_by_node=runs_by_node
        )
    finally:
        with _keep_signal_handlers():
            ray.shutdown()


def _runs_of_node(resources: dict[str, float], cpus: int, gpus: float) -> int:
    """Return how many runs a node can train at the same time. A share of a GPU does not extend over two GPUs."""
    by_cpus = int(resources.get("CPU", 0) // cpus)
    return by_cpus if gpus == 0 else min(by_cpus, int(resources.get("GPU", 0)) * int(1 / gpus))


def _check_reachable(address: str) -> None:
    """Raise InputError if nothing accepts connections at HOST:PORT: Ray would retry for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise InputError(f"{address!r} is not an address of a Ray cluster: write ray:HOST:PORT, such as ray:node1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"no Ray cluster at {address} ({reason}): start one there with `ray start --head`, or correct the address"
        ) from error


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the handlers of this process: Ray sets one that exits at SIGTERM without saving."""
    before = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
