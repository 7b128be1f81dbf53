"""Runs what the results do not hold yet: within a budget, several together, to be stopped and continued at any time.

The run folders are the truth while runs are under way; a finished folder becomes a line of the results. Whatever
happens in between, killing included, the next call takes up what it finds.
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
from metalabelnet.errors import InputError, Stopped
from metalabelnet.launch.concurrent_runs import train_concurrently
from metalabelnet.launch.process_pool import Job, Outcome, train_all
from metalabelnet.reproduction.loss_figure import losses_along_a_step
from metalabelnet.reproduction.results import Results, key, line_of_folder, make_line
from metalabelnet.reproduction.time_budget import Estimate
from metalabelnet.train.loop import Diverged, Progress
from metalabelnet.train.prepare import read
from metalabelnet.train.run_folder import Busy, RunFolder, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from metalabelnet.reproduction.recipes import Entry
    from metalabelnet.reproduction.resources import Places
    from metalabelnet.reproduction.result_lines import Line

HEARTBEAT = 30.0  # seconds between words about a run that is under way


def _train_group(
    jobs: Sequence[Job],
    *,
    workers: int,
    concurrent: int,
    on_progress: Callable[[int, Progress | None], None],
    stop: Callable[[], bool],
    read_cache: ReadCache,
) -> list[Outcome]:
    """Train these runs: in processes beside each other, or on one device, several in turns."""
    how: Any = {"resume": True, "on_progress": on_progress, "stop": stop, "readings": read_cache, "go_on": True}
    if workers > 1 or len(jobs) == 1:
        return train_all(jobs, workers=workers, **how)
    return train_concurrently(jobs, concurrent=concurrent, **how)


@dataclass(frozen=True, kw_only=True)
class Task:
    """An entry with its run and its folder."""

    entry: Entry
    job: Job


class Runner:
    """Runs entries, and adds a line for each to the results.

    together  how many runs share a device; where one ends the next begins
    workers   processes with one thread each, for runs on a CPU
    budget    seconds; a run that would not end within is not started, one under way at the end is stopped
    say       told a line about every run that ended
    stop      asked after every step
    """

    def __init__(
        self,
        results: Results,
        places: Places,
        out: Path,
        *,
        concurrent: int,
        workers: int = 1,
        budget: float | None,
        cheapest: bool,
        say: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self.results, self.places, self.out = results, places, out
        self.concurrent, self.workers, self.cheapest = concurrent, workers, cheapest
        self.say, self._asked = say, stop
        self.estimate = Estimate(results.lines, versions()["device"])
        self.deadline = None if budget is None else time.monotonic() + budget
        self.failures: list[str] = []
        self.ended = self.total = 0
        self._spoke = time.monotonic()
        self._readings = ReadCache(at_a_time=max(concurrent, workers))

    def run(self, entries: Sequence[Entry]) -> int:
        """Run what is open; gives the number of runs that are left for want of budget."""
        queue = self._readable(self._tasks(self.open(entries)))
        self.total = len(queue)
        if self.cheapest:
            queue.sort(key=lambda task: self.estimate.seconds(task.entry) or 0.0)
        while queue:
            group = self._next_group(queue)
            if not group:
                break
            for task in group:
                queue.remove(task)
            try:
                self._run(group)
            except Stopped:
                if self._asked():
                    raise
                left = [task for task in group if self.results.of(task.entry) is None]
                return len(left) + len(queue)
        return len(queue)

    def open(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries without a result, each run once."""
        unique: dict[str, Entry] = {}
        for entry in entries:
            if self.results.of(entry) is None:
                before = unique.setdefault(key(entry), entry)
                if entry.curves and not before.curves:  # the place of the first, the needs of both
                    unique[key(entry)] = dataclasses.replace(before, curves=True)
        return list(unique.values())

    def _tasks(self, entries: Sequence[Entry]) -> list[Task]:
        tasks = []
        lacking: dict[str, int] = {}
        for entry in entries:
            if lack := self.places.lacks(entry):
                lacking[lack] = lacking.get(lack, 0) + 1
                continue
            run = self.places.run(entry)
            task = Task(entry=entry, job=Job(run=run, folder=self.out / folder_name(entry, run.dtype)))
            try:
                RunFolder(task.job.folder).check(run, resume=True)
            except InputError as error:
                self._fail(entry, str(error))
                continue
            if not self._take(task):
                tasks.append(task)
        sentences = [f"{count} runs need {lack}" for lack, count in lacking.items()]
        if sentences and not tasks:
            raise InputError("nothing can be run: " + "; ".join(sentences))
        for sentence in sentences:
            self.say(f"left out: {sentence}")
        return tasks

    def _readable(self, tasks: Sequence[Task]) -> list[Task]:
        """Those whose data can be read. It is tried once: each run would try again, downloads included."""
        by_data: dict[str, list[Task]] = {}
        for task in tasks:
            by_data.setdefault(task.job.run.data, []).append(task)
        unread: dict[str, str] = {}
        for data, (first, *_) in by_data.items():
            try:
                read(first.job.run, read_cache=self._readings)
            except InputError as error:
                unread[data] = str(error)
        if unread and len(unread) == len(by_data):
            raise InputError("nothing can be run: " + "; ".join(unread.values()))
        for data, why in unread.items():
            self._fail(f"{len(by_data[data])} runs on {data}", why)
        return [task for task in tasks if task.job.run.data not in unread]

    def _next_group(self, queue: Sequence[Task]) -> list[Task]:
        """The first run that fits into what is left of the budget, with those that can go along."""
        left = math.inf if self.deadline is None else self.deadline - time.monotonic()
        if left <= 0:
            return []
        work = left * self.workers
        group: list[Task] = []
        for task in queue:
            seconds = self.estimate.seconds(task.entry) or 0.0
            if seconds > min(left, work) or (group and not self._goes_along(task, group[0])):
                continue
            group.append(task)
            work -= seconds
            if task.entry.kind != "run" or self.workers == self.concurrent == 1:
                break
        return group

    def _goes_along(self, task: Task, first: Task) -> bool:
        """Whether one can begin where the other ends: on one device, if the data need not be read again."""
        if self.workers == 1 and task.job.run.data != first.job.run.data:
            return False
        return task.entry.kind == first.entry.kind == "run"

    def _run(self, group: Sequence[Task], concurrent: int | None = None) -> None:
        concurrent = min(concurrent or self.concurrent, len(group)) if self.workers == 1 else 1
        if group[0].entry.kind == "losses":
            self._measure_losses(group[0])
            return
        outcomes = self._train(group, concurrent)
        if isinstance(outcomes, str):
            self._failed(group, concurrent, outcomes)
            return
        self._harvest(group, concurrent)
        for task, outcome in zip(group, outcomes, strict=True):
            if outcome.failure is None or self.results.of(task.entry) is not None:  # another process may have ended it
                continue
            if outcome.busy:
                self._leave(task)
            elif outcome.lost or outcome.refused:
                self._fail(task.entry, outcome.failure)
            else:
                self._diverged(task, outcome.failure)

    def _train(self, group: Sequence[Task], concurrent: int) -> list[Outcome] | str:
        """The outcomes, or why there are none: in words, as an error that was raised holds what broke off."""

        def tell(number: int, progress: Progress | None) -> None:
            if progress is None:
                self._take(group[number], concurrent)
            else:
                self._heartbeat(group[number], progress)

        try:
            return _train_group(
                [task.job for task in group],
                workers=self.workers,
                concurrent=concurrent,
                on_progress=tell,
                stop=self._stop,
                read_cache=self._readings,
            )
        except Stopped:
            self._harvest(group, concurrent)
            raise
        except InputError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    def _leave(self, task: Task) -> None:
        self.say(f"{task.entry}: another process is at work on it, and it is left to that one")

    def _failed(self, group: Sequence[Task], concurrent: int, why: str) -> None:
        """One of them may have spoilt it for all, such as by taking too much memory: half as many, then one by one."""
        if len(group) == 1:
            self._fail(group[0].entry, why)
            return
        gc.collect()  # what broke off holds its folders and its memory until it is gone
        left = [task for task in group if not self._take(task, concurrent)]
        if left and concurrent > 1:
            self.say(f"{concurrent} runs together broke off ({why}): going on with {concurrent // 2}")
            self._run(left, concurrent // 2)
            return
        for task in left:
            self._run([task])

    def _measure_losses(self, task: Task) -> None:
        try:
            losses = losses_along_a_step(
                task.job.run, task.job.folder, stop=self._stop, on_progress=lambda p: self._heartbeat(task, p)
            )
        except Diverged as error:
            self._diverged(task, str(error))
            return
        except Busy:
            self._leave(task)
            return
        except InputError as error:
            self._fail(task.entry, str(error))
            return
        self._add(task.entry, make_line(task.entry, about=RunFolder(task.job.folder).about(), losses=losses))

    def _harvest(self, group: Sequence[Task], concurrent: int) -> None:
        for task in group:
            self._take(task, concurrent)

    def _take(self, task: Task, concurrent: int = 1) -> bool:
        """Make a line of a finished folder, if it is finished and has none yet."""
        files = RunFolder(task.job.folder)
        if not files.finished:
            return False
        if self.results.of(task.entry) is None:
            more = {"concurrent": concurrent} if concurrent > 1 else {}
            self._add(task.entry, line_of_folder(task.entry, files, **more))
        return True

    def _diverged(self, task: Task, failure: str) -> None:
        sentence = failure.replace(f"{task.job.folder}/", "")  # a line names no path of this machine
        about = RunFolder(task.job.folder).about()
        self._add(task.entry, make_line(task.entry, about=about, failure=sentence))

    def _add(self, entry: Entry, line: Line) -> None:
        self.results.add(line | {"commit": self.places.commit or line["commit"]})
        self.estimate.learn(line)
        self.ended += 1
        of = f"[{self.ended}/{self.total}] " if self.total else ""
        self.say(f"{of}{entry}: {_told(line)}{_beside(entry)}")

    def _fail(self, what: Entry | str, why: str) -> None:
        self.failures.append(f"{what}: {why}")
        self.say(f"{what}: failed: {why}")

    def _heartbeat(self, task: Task, progress: Progress) -> None:
        if time.monotonic() - self._spoke > HEARTBEAT:
            self._spoke = time.monotonic()
            self.say(f"{task.entry}: epoch {progress.epoch + 1} of {progress.epochs}")

    def _stop(self) -> bool:
        return self._asked() or (self.deadline is not None and time.monotonic() >= self.deadline)


def folder_name(entry: Entry, dtype: str) -> str:
    """A name for people, and a few letters that tell any two runs apart."""
    cell = entry.cell.replace(":", "").replace("/", "-")
    parts = [entry.fields["data"], entry.method, cell, f"seed{entry.seed}", dtype]
    mark = hashlib.sha256(key(entry).encode()).hexdigest()[:8]
    return "-".join(str(part) for part in (*parts, mark))


def _told(line: Line) -> str:
    if line.get("failure"):
        return f"failed: {line['failure']}"
    if line["summary"] is None:
        return "measured"
    s = line["summary"]
    last = f"last {s['test_accuracy_last']:.2f}"
    return f"{s['test_accuracy']:.2f} ({last}, epoch {s['selected_epoch']}, {s['seconds']:.0f} s)"


def _beside(entry: Entry) -> str:
    return "" if entry.paper is None else f"; the paper has {entry.paper}"
