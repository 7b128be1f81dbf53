"""Runs the specs that have no result yet, within a time budget, several concurrently; can be stopped and resumed.

A run in progress exists as a run folder. A finished folder becomes a result line. If the process is killed, the next
call resumes the run folders it finds.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.data.read_cache import ReadCache
from metalabelnet.errors import DivergenceError, InputError, RunStopped
from metalabelnet.launch.concurrent_runs import train_concurrently
from metalabelnet.launch.process_pool import Job, Outcome, train_all
from metalabelnet.reproduction.results import Results, make_result_line, result_line_from_folder, spec_key
from metalabelnet.reproduction.runtime_estimate import RuntimeEstimator
from metalabelnet.reproduction.step_losses import losses_along_step
from metalabelnet.train.folder_lock import RunBusyError
from metalabelnet.train.prepare import read_data
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from metalabelnet.launch.ray_cluster import RayCluster
    from metalabelnet.reproduction.experiment import RunSpec
    from metalabelnet.reproduction.resources import Resources
    from metalabelnet.reproduction.results import ResultLine
    from metalabelnet.train.result import Progress

HEARTBEAT_SECONDS = 30.0  # between two messages about runs in progress
CHECKPOINT_SECONDS = 60.0  # a checkpoint of a large network takes about a second


def _train_group(
    jobs: Sequence[Job],
    *,
    workers: int,
    concurrent: int,
    cluster: RayCluster | None,
    on_progress: Callable[[int, Progress | None], None],
    stop: Callable[[], bool],
    read_cache: ReadCache,
) -> list[Outcome]:
    """Train these runs on a cluster, in worker processes, or concurrently on one device."""
    options: Any = {
        "resume": True,
        "on_progress": on_progress,
        "stop": stop,
        "checkpoint_seconds": CHECKPOINT_SECONDS,
    }
    if cluster is not None:
        return cluster.train_all(jobs, **options)
    options |= {"read_cache": read_cache, "keep_going": True}
    if workers > 1 or len(jobs) == 1:
        return train_all(jobs, workers=workers, **options)
    return train_concurrently(jobs, concurrent=concurrent, **options)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A spec with its run and its folder."""

    spec: RunSpec
    job: Job


class Runner:
    """Runs specs and adds a result line for each.

    Parameters
    ----------
    results : Results
        The result lines so far.
    resources : Resources
        Files and device of this machine.
    out : Path
        Folder for the run folders.
    concurrent : int
        Number of runs that share a device. When one ends, the next starts.
    workers : int
        Number of processes with one thread each, for runs on a CPU.
    cluster : RayCluster or None
        Trains the runs in place of this machine, as many at a time as it can.
    budget : float or None
        Seconds. A run that is not expected to end within the budget is not started; a run in progress when it is used
        up is stopped.
    cheapest_first : bool
        Whether to run the specs by increasing estimated time.
    log : callable
        Called with one line of text about each run that ended.
    stop : callable
        Called after every step; training stops when it returns True.
    """

    def __init__(
        self,
        results: Results,
        resources: Resources,
        out: Path,
        *,
        concurrent: int,
        workers: int = 1,
        cluster: RayCluster | None = None,
        budget: float | None,
        cheapest_first: bool,
        log: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self.results, self.resources, self.out = results, resources, out
        self.concurrent, self.cheapest_first = concurrent, cheapest_first
        self.cluster, self.workers = cluster, workers if cluster is None else cluster.workers
        self.log, self._stop_requested = log, stop
        self.estimator = RuntimeEstimator(results.lines, resources.device_name)
        self.deadline = None if budget is None else time.monotonic() + budget
        self.failures: list[str] = []
        self.ended = self.total = 0
        self._last_heartbeat = time.monotonic()
        self._read_cache = ReadCache(concurrent_runs=max(concurrent, workers))  # not used by the runs of a cluster

    def run(self, specs: Sequence[RunSpec]) -> int:
        """Run the specs without a result; returns the number of runs left when the budget is used up."""
        queue = self._with_readable_data(self._tasks(self.missing(specs)))
        self.total = len(queue)
        if self.cheapest_first:
            queue.sort(key=lambda task: self.estimator.seconds(task.spec) or 0.0)
        while queue:
            group = self._next_group(queue)
            if not group:
                break
            for task in group:
                queue.remove(task)
            try:
                self._run(group)
            except RunStopped:
                if self._stop_requested():
                    raise
                left = [task for task in group if self.results.find(task.spec) is None]
                return len(left) + len(queue)
        return len(queue)

    def missing(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """The specs without a result; specs of the same run are merged."""
        unique: dict[str, RunSpec] = {}
        for spec in specs:
            if self.results.find(spec) is None:
                before = unique.setdefault(spec_key(spec), spec)
                if spec.curves and not before.curves:
                    unique[spec_key(spec)] = dataclasses.replace(before, curves=True)
        return list(unique.values())

    def _tasks(self, specs: Sequence[RunSpec]) -> list[PlannedRun]:
        tasks = []
        missing_files: dict[str, int] = {}
        for spec in specs:
            if option := self.resources.missing(spec):
                missing_files[option] = missing_files.get(option, 0) + 1
                continue
            run = self.resources.run(spec)
            task = PlannedRun(spec=spec, job=Job(run=run, folder=self.out / folder_name(spec, run.dtype)))
            try:
                RunFolder(task.job.folder).check(run, resume=True)
            except InputError as error:
                self._report_failure(spec, str(error))
                continue
            if not self._add_if_finished(task):
                tasks.append(task)
        sentences = [f"{count} runs need {option}" for option, count in missing_files.items()]
        if sentences and not tasks:
            raise InputError("nothing can be run: " + "; ".join(sentences))
        for sentence in sentences:
            self.log(f"skipped: {sentence}")
        return tasks

    def _with_readable_data(self, tasks: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The tasks whose data can be read. Each data set is tried once, as a failed download is slow."""
        by_data: dict[str, list[PlannedRun]] = {}
        for task in tasks:
            by_data.setdefault(task.job.run.data, []).append(task)
        unreadable: dict[str, str] = {}
        for data, (first, *_) in by_data.items():
            try:
                read_data(first.job.run, read_cache=self._read_cache)
            except InputError as error:
                unreadable[data] = str(error)
        if unreadable and len(unreadable) == len(by_data):
            raise InputError("nothing can be run: " + "; ".join(unreadable.values()))
        for data, reason in unreadable.items():
            self._report_failure(f"{len(by_data[data])} runs on {data}", reason)
        return [task for task in tasks if task.job.run.data not in unreadable]

    def _next_group(self, queue: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The first run that fits into the rest of the budget, with the runs that can be trained in the same call."""
        left = math.inf if self.deadline is None else self.deadline - time.monotonic()
        if left <= 0:
            return []
        work = left * self.workers
        group: list[PlannedRun] = []
        for task in queue:
            seconds = self.estimator.seconds(task.spec) or 0.0
            if seconds > min(left, work) or (group and not self._compatible(task, group[0])):
                continue
            group.append(task)
            work -= seconds
            if task.spec.kind != "run" or self.workers == self.concurrent == 1:
                break
        return group

    def _compatible(self, task: PlannedRun, first: PlannedRun) -> bool:
        """Whether both runs can be trained in one call; on one device they must use the same data."""
        if self.workers == 1 and task.job.run.data != first.job.run.data:
            return False
        return task.spec.kind == first.spec.kind == "run"

    def _run(self, group: Sequence[PlannedRun], concurrent: int | None = None) -> None:
        concurrent = min(concurrent or self.concurrent, len(group)) if self.workers == 1 else 1
        if group[0].spec.kind == "losses":
            self._measure_losses(group[0])
            return
        outcomes = self._train(group, concurrent)
        if isinstance(outcomes, str):
            self._retry(group, concurrent, outcomes)
            return
        self._add_finished(group, concurrent)
        for task, outcome in zip(group, outcomes, strict=True):
            if (
                outcome.failure is None or self.results.find(task.spec) is not None
            ):  # another process may have finished it
                continue
            if outcome.busy:
                self._log_busy(task)
            elif outcome.killed or outcome.rejected:
                self._report_failure(task.spec, outcome.failure)
            else:
                self._add_diverged(task, outcome.failure)

    def _train(self, group: Sequence[PlannedRun], concurrent: int) -> list[Outcome] | str:
        """The outcomes, or the message of the error. The error itself is not kept: its traceback holds GPU memory."""

        def report(number: int, progress: Progress | None) -> None:
            if progress is None:
                self._add_if_finished(group[number], concurrent)
            else:
                self._heartbeat(group[number], progress)

        try:
            return _train_group(
                [task.job for task in group],
                workers=self.workers,
                concurrent=concurrent,
                cluster=self.cluster,
                on_progress=report,
                stop=self._stop,
                read_cache=self._read_cache,
            )
        except RunStopped:
            self._add_finished(group, concurrent)
            raise
        except InputError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    def _log_busy(self, task: PlannedRun) -> None:
        self.log(f"{task.spec}: skipped, another process is running it")

    def _retry(self, group: Sequence[PlannedRun], concurrent: int, reason: str) -> None:
        """Retry a failed group with half as many concurrent runs, then one by one; it may have run out of memory."""
        if len(group) == 1:
            self._report_failure(group[0].spec, reason)
            return
        gc.collect()  # frees memory and folder locks of the failed runs
        left = [task for task in group if not self._add_if_finished(task, concurrent)]
        if left and concurrent > 1:
            self.log(f"{concurrent} concurrent runs failed ({reason}); retrying with {concurrent // 2}")
            self._run(left, concurrent // 2)
            return
        for task in left:
            self._run([task])

    def _measure_losses(self, task: PlannedRun) -> None:
        try:
            losses = losses_along_step(
                task.job.run, task.job.folder, stop=self._stop, on_progress=lambda p: self._heartbeat(task, p)
            )
        except DivergenceError as error:
            self._add_diverged(task, str(error))
            return
        except RunBusyError:
            self._log_busy(task)
            return
        except InputError as error:
            self._report_failure(task.spec, str(error))
            return
        self._add(task.spec, make_result_line(task.spec, metadata=RunFolder(task.job.folder).metadata(), losses=losses))

    def _add_finished(self, group: Sequence[PlannedRun], concurrent: int) -> None:
        for task in group:
            self._add_if_finished(task, concurrent)

    def _add_if_finished(self, task: PlannedRun, concurrent: int = 1) -> bool:
        """Add the result line of a folder if it is finished and has none yet; returns whether it is finished."""
        files = RunFolder(task.job.folder)
        if not files.finished:
            return False
        if self.results.find(task.spec) is None:
            more = {"concurrent": concurrent} if concurrent > 1 else {}
            self._add(task.spec, result_line_from_folder(task.spec, files, **more))
        return True

    def _add_diverged(self, task: PlannedRun, failure: str) -> None:
        message = failure.replace(f"{task.job.folder}/", "")  # result lines contain no paths of this machine
        metadata = RunFolder(task.job.folder).metadata()
        self._add(task.spec, make_result_line(task.spec, metadata=metadata, failure=message))

    def _add(self, spec: RunSpec, line: ResultLine) -> None:
        self.results.add(line | {"commit": line["commit"] or self.resources.commit})  # a run may be older than this one
        self.estimator.add(line)
        self.ended += 1
        counter = f"[{self.ended}/{self.total}] " if self.total else ""
        paper = "" if spec.paper is None else f"; paper: {spec.paper}"
        self.log(f"{counter}{spec}: {_describe(line)}{paper}")

    def _report_failure(self, subject: RunSpec | str, reason: str) -> None:
        self.failures.append(f"{subject}: {reason}")
        self.log(f"{subject}: failed: {reason}")

    def _heartbeat(self, task: PlannedRun, progress: Progress) -> None:
        if time.monotonic() - self._last_heartbeat > HEARTBEAT_SECONDS:
            self._last_heartbeat = time.monotonic()
            self.log(f"{task.spec}: epoch {progress.epoch + 1} of {progress.epochs}")

    def _stop(self) -> bool:
        return self._stop_requested() or (self.deadline is not None and time.monotonic() >= self.deadline)


def folder_name(spec: RunSpec, dtype: str) -> str:
    """A readable folder name that ends in a hash of the settings, so that no two runs share a folder."""
    cell = spec.cell.replace(":", "").replace("/", "-")
    parts = [spec.fields["data"], spec.method.replace(":", "-"), cell, f"seed{spec.seed}", dtype]
    digest = hashlib.sha256(spec_key(spec).encode()).hexdigest()[:8]
    return "-".join(str(part) for part in (*parts, digest))


def _describe(line: ResultLine) -> str:
    if line.get("failure"):
        return f"failed: {line['failure']}"
    if line["summary"] is None:
        return "measured"
    s = line["summary"]
    last = f"last {s['test_accuracy_last']:.2f}"
    return f"{s['test_accuracy']:.2f} ({last}, epoch {s['selected_epoch']}, {s['seconds']:.0f} s)"
