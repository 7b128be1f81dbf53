"""The process pool: folders are checked first, finished runs are kept, a failure does not affect the others."""

import dataclasses
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.errors import InputError
from metalabelnet.launch import process_pool, worker
from metalabelnet.launch.process_pool import Job, train_all
from metalabelnet.train import Progress, RunFolder, RunStopped, train
from tiny_data import folder_contents, run_outputs, tiny_run, write_npz


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    data = write_npz(tmp_path / "tiny.npz")
    names = ("cross-entropy", "clean-only", "fine-tune")
    return [Job(run=tiny_run(data, name, epochs=3), folder=tmp_path / "runs" / name) for name in names]


def test_pool_gives_same_bytes_as_single_runs(jobs: list[Job], tmp_path: Path) -> None:
    reports: list[tuple[int, Progress | None]] = []
    outcomes = train_all(jobs, on_progress=lambda number, progress: reports.append((number, progress)))
    for number, (job, ended) in enumerate(zip(jobs, outcomes, strict=True)):
        train(job.run, folder=tmp_path / "single" / job.run.method)
        assert run_outputs(job.folder) == run_outputs(tmp_path / "single" / job.run.method)
        assert ended.summary == RunFolder(job.folder).summary()
        mine = [progress for n, progress in reports if n == number]
        assert mine[-1] is None
        assert [p.metrics["epoch"] for p in mine if p is not None and p.metrics is not None] == [0, 1, 2]


def test_finished_runs_are_kept_and_others_are_resumed(jobs: list[Job]) -> None:
    train(jobs[0].run, folder=jobs[0].folder)
    with pytest.raises(RunStopped):
        train(jobs[1].run, folder=jobs[1].folder, stop=lambda: True)
    before = folder_contents(jobs[0].folder)
    outcomes = train_all(jobs, resume=True)
    assert folder_contents(jobs[0].folder) == before
    assert all(o.summary for o in outcomes)
    assert [o.summary["method"] for o in outcomes if o.summary] == [job.run.method for job in jobs]


def test_folders_are_checked_before_the_first_run(jobs: list[Job]) -> None:
    train(jobs[2].run, folder=jobs[2].folder)
    with pytest.raises(InputError, match="already holds a run"):
        train_all(jobs)
    assert not jobs[0].folder.exists()


def test_diverged_run_is_reported_and_others_continue(jobs: list[Job]) -> None:
    diverging = Job(run=dataclasses.replace(jobs[0].run, lr=1e30), folder=jobs[0].folder)
    first, second = train_all([diverging, jobs[1]])
    assert first.summary is None
    assert "learning rate 1e+30" in str(first.failure)
    assert second.summary is not None
    assert second.failure is None


@pytest.mark.parametrize("workers", [1, 2])
def test_rejected_run_is_reported_and_others_continue(jobs: list[Job], workers: int) -> None:
    wrong = Job(run=dataclasses.replace(jobs[0].run, net="timm:no_such_net"), folder=jobs[0].folder)
    first, second = train_all([wrong, jobs[1]], workers=workers, keep_going=True)
    assert first.summary is None
    assert "no_such_net" in str(first.failure)
    assert (first.rejected, first.busy) == (True, False)
    assert second.summary is not None
    assert not wrong.folder.exists()


def test_rejected_run_raises_without_keep_going(jobs: list[Job]) -> None:
    wrong = Job(run=dataclasses.replace(jobs[0].run, net="timm:no_such_net"), folder=jobs[0].folder)
    with pytest.raises(InputError, match="no_such_net"):
        train_all([wrong, jobs[1]])


def test_no_run_starts_after_a_stop(jobs: list[Job]) -> None:
    stopping = False
    reports: list[tuple[int, Progress | None]] = []

    def report(number: int, progress: Progress | None) -> None:
        nonlocal stopping
        reports.append((number, progress))
        stopping = stopping or (number == 1 and progress is not None and progress.metrics is not None)

    with pytest.raises(RunStopped):
        train_all(jobs, on_progress=report, stop=lambda: stopping)
    assert [RunFolder(job.folder).finished for job in jobs] == [True, False, False]
    assert RunFolder(jobs[1].folder).checkpoint.exists()
    assert not jobs[2].folder.exists()
    assert (0, None) in reports
    assert (1, None) not in reports  # a stopped run has not ended


def test_every_run_has_one_thread(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of sums depends on the number of threads, and results must not depend on --jobs."""
    seen: list[int] = []

    def watch(number: int, job: Job, **_: Any) -> process_pool.Outcome:
        seen.append(torch.get_num_threads())
        return process_pool.Outcome(summary={})

    monkeypatch.setattr(process_pool, "run_job", watch)
    torch.set_num_threads(2)
    try:
        train_all(jobs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 1, 1]


class TestWorker:
    """A worker exits at once when idle, and after its run has saved a checkpoint otherwise."""

    @pytest.fixture
    def exits(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        codes: list[int] = []
        monkeypatch.setattr(os, "_exit", codes.append)
        monkeypatch.setattr(worker, "EXIT_DELAY_SECONDS", 0.01)
        return codes

    def test_idle_worker_exits_at_once(self, exits: list[int]) -> None:
        worker.Worker(None, threading.Event()).exit()  # type: ignore[arg-type]
        assert exits == [1]

    def test_running_worker_stops_its_run_first(self, exits: list[int]) -> None:
        w = worker.Worker(None, threading.Event())  # type: ignore[arg-type]
        with w.running():
            assert not w.stop()
            w.exit()
            assert w.stop()
            assert not exits
        until = time.monotonic() + 5
        while not exits and time.monotonic() < until:
            time.sleep(0.01)
        assert exits == [1]

    def test_parent_can_stop_a_run_and_keep_the_worker(self, exits: list[int]) -> None:
        stop_event = threading.Event()
        w = worker.Worker(None, stop_event)  # type: ignore[arg-type]
        with w.running():
            stop_event.set()
            assert w.stop()
        time.sleep(0.05)
        assert not exits


def test_stop_reports_unsaved_work_of_any_process() -> None:
    def stopped(*message: str) -> Future[process_pool.Outcome]:
        future: Future[process_pool.Outcome] = Future()
        future.set_exception(RunStopped(*message))
        return future

    for futures in ([stopped(), stopped("not saved")], [stopped("not saved"), stopped()]):
        with pytest.raises(RunStopped, match="not saved"):
            process_pool._collect_outcomes(futures, stopped=True)
