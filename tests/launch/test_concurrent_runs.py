"""Concurrent runs give the same bytes as single runs; a failure or a stop does not affect the others."""

import dataclasses
import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest

from metalabelnet.data.batches import Batches
from metalabelnet.engine import Engine
from metalabelnet.errors import InputError
from metalabelnet.launch.concurrent_runs import MAX_QUEUED_STEPS, ConcurrentRun, train_concurrently
from metalabelnet.launch.process_pool import Job
from metalabelnet.methods import Method
from metalabelnet.train import RunFolder, RunStopped, train
from metalabelnet.train import loop as loop_module
from metalabelnet.train.loop import TrainingLoop
from tiny_data import folder_contents, run_outputs, tiny_run, write_npz


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    data = write_npz(tmp_path / "tiny.npz")
    names = ("cross-entropy", "metalabelnet", "co-teaching", "metalabelnet")
    return [
        Job(run=tiny_run(data, name, epochs=3, seed=seed), folder=tmp_path / "runs" / f"{name}-{seed}")
        for seed, name in enumerate(names)
    ]


@pytest.mark.parametrize("concurrent", [1, 3, 8])
def test_concurrent_runs_give_same_bytes_as_single_runs(jobs: list[Job], concurrent: int, tmp_path: Path) -> None:
    ended: list[int] = []
    outcomes = train_concurrently(
        jobs, concurrent=concurrent, on_progress=lambda n, p: ended.append(n) if p is None else None
    )
    assert sorted(ended) == [0, 1, 2, 3]
    for job, got in zip(jobs, outcomes, strict=True):
        single = tmp_path / "single" / job.folder.name
        train(job.run, folder=single)
        assert run_outputs(job.folder) == run_outputs(single)
        assert got.summary == RunFolder(job.folder).summary()


def test_steps_are_interleaved(jobs: list[Job]) -> None:
    order: list[int] = []
    train_concurrently(jobs[:2], on_progress=lambda n, p: order.append(n) if p is not None and p.step else None)
    assert order[:6] == [0, 1, 0, 1, 0, 1]


def test_queue_of_steps_is_bounded(jobs: list[Job]) -> None:
    """It is full until the GPU has finished the first step in it."""

    class Event:
        reached = False

        def query(self) -> bool:
            return self.reached

    events = [Event() for _ in range(MAX_QUEUED_STEPS + 1)]
    run = ConcurrentRun(0, jobs[0], iter(()), None, delay=0, keep_going=False)  # type: ignore[arg-type]
    for event in events[:MAX_QUEUED_STEPS]:
        assert not run.queue_is_full
        run.step_ends.append(event)  # type: ignore[arg-type]
    assert run.queue_is_full
    events[0].reached = True
    assert not run.queue_is_full
    run.step_ends.append(events[MAX_QUEUED_STEPS])  # type: ignore[arg-type]
    assert run.queue_is_full


def test_host_plans_the_next_epoch_before_it_waits_for_the_gpu(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are queued, and read only after waiting."""
    order: list[object] = []
    plan = Batches.plan_epoch
    monkeypatch.setattr(
        Batches, "plan_epoch", lambda b, epoch, **options: order.append(epoch) or plan(b, epoch, **options)
    )
    monkeypatch.setattr(loop_module, "wait_for_device", lambda _: order.append("wait") or ())
    for name in ("predict", "evaluate", "save"):
        call = getattr(TrainingLoop, name)
        monkeypatch.setattr(TrainingLoop, name, lambda *a, name=name, call=call: order.append(name) or call(*a))
    end = ["wait", "predict", "wait", "evaluate"]
    train(jobs[1].run)
    assert order[:11] == [0, 1, *end, 2, *end]
    order.clear()
    train(jobs[1].run, checkpoint_seconds=0)
    assert order[:5] == [0, "wait", "save", "wait", "save"]


def test_others_continue_while_one_run_waits_for_the_gpu(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "wait_for_device", lambda _: iter([None] * 3))
    order: list[int] = []
    train_concurrently(jobs[:2], on_progress=lambda n, p: order.append(n) if p is not None and p.step else None)
    assert order[:2] == [0, 1]
    assert {first == second for first, second in itertools.pairwise(order)} == {True, False}
    for job in jobs[:2]:
        train(job.run, folder=tmp_path / "single" / job.folder.name)
        assert run_outputs(job.folder) == run_outputs(tmp_path / "single" / job.folder.name)


def test_diverged_run_is_reported_and_others_continue(jobs: list[Job]) -> None:
    diverging = Job(run=dataclasses.replace(jobs[0].run, lr=1e30), folder=jobs[0].folder)
    first, second = train_concurrently([diverging, jobs[1]])
    assert "learning rate 1e+30" in str(first.failure)
    assert second.summary is not None


def test_rejected_run_is_reported_and_others_continue(jobs: list[Job]) -> None:
    wrong = Job(run=dataclasses.replace(jobs[0].run, net="timm:no_such_net"), folder=jobs[0].folder)
    with pytest.raises(InputError, match="no_such_net"):
        train_concurrently([jobs[1], wrong])
    first, second = train_concurrently([wrong, jobs[1]], resume=True, keep_going=True)
    assert "no_such_net" in str(first.failure)
    assert (first.rejected, first.busy) == (True, False)
    assert second.summary is not None


def test_busy_run_is_reported_and_others_continue(jobs: list[Job]) -> None:
    """The lock is checked when the run starts, while another is in progress."""
    with pytest.raises(RunStopped):
        train(jobs[2].run, folder=jobs[2].folder, stop=lambda: True)
    with RunFolder(jobs[2].folder).lock():
        outcomes = train_concurrently(jobs, concurrent=2, resume=True, keep_going=True)
    assert [one.busy for one in outcomes] == [False, False, True, False]
    assert [one.summary is not None for one in outcomes] == [True, True, False, True]


def test_stop_saves_all_runs_and_resume_gives_same_bytes(jobs: list[Job], tmp_path: Path) -> None:
    calls = iter(range(10**6))
    with pytest.raises(RunStopped):
        train_concurrently(jobs, concurrent=2, stop=lambda: next(calls) >= 7)
    assert [RunFolder(job.folder).checkpoint.exists() for job in jobs] == [True, True, False, False]
    train_concurrently(jobs, resume=True)
    for job in jobs:
        single = tmp_path / "single" / job.folder.name
        train(job.run, folder=single)
        assert run_outputs(job.folder) == run_outputs(single)


def test_stop_reports_unsaved_work_of_any_run(jobs: list[Job]) -> None:
    noisy = Job(run=dataclasses.replace(jobs[1].run, noise="feature:0.4"), folder=jobs[1].folder)
    for order in ([jobs[0], noisy], [noisy, jobs[0]]):
        with pytest.raises(RunStopped, match="the network for feature-dependent noise is trained again"):
            train_concurrently(order, resume=True, stop=lambda: True)


def test_finished_runs_are_kept_and_folders_are_checked_first(jobs: list[Job]) -> None:
    train(jobs[1].run, folder=jobs[1].folder)
    before = folder_contents(jobs[1].folder)
    with pytest.raises(InputError, match="already holds a run"):
        train_concurrently(jobs)
    assert not jobs[0].folder.exists()
    outcomes = train_concurrently(jobs[:2], resume=True)
    assert folder_contents(jobs[1].folder) == before
    assert outcomes[1].summary == RunFolder(jobs[1].folder).summary()


@pytest.mark.parametrize("traced", [False, True])
def test_memory_of_a_run_is_freed_before_the_next_starts(
    jobs: list[Job], traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without garbage collection of cycles: a long list of runs must fit where the first did."""
    methods: list[weakref.ref[Method]] = []
    alive: list[int] = []

    class Watched(Engine):
        def __init__(self, method: Method, make_batch: Any, **options: Any) -> None:
            alive.append(sum(one() is not None for one in methods))
            methods.append(weakref.ref(method))
            super().__init__(method, make_batch, **{**options, "traced": traced, "compile": False})

    monkeypatch.setattr(loop_module, "Engine", Watched)
    chosen = [job for job in jobs if job.run.method != "co-teaching"]
    gc.collect()
    gc.disable()
    try:
        train_concurrently(chosen, concurrent=1)
    finally:
        gc.enable()
    assert alive == [0, 0, 0]
