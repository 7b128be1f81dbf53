"""Runs that take turns: each leaves what it leaves alone, one that fails or a stop costs the others nothing."""

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
from metalabelnet.launch.concurrent_runs import AHEAD, Turns, train_concurrently
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
def test_each_job_leaves_what_it_leaves_alone(jobs: list[Job], concurrent: int, tmp_path: Path) -> None:
    ended: list[int] = []
    outcomes = train_concurrently(
        jobs, concurrent=concurrent, on_progress=lambda n, p: ended.append(n) if p is None else None
    )
    assert sorted(ended) == [0, 1, 2, 3]
    for job, got in zip(jobs, outcomes, strict=True):
        alone = tmp_path / "alone" / job.folder.name
        train(job.run, folder=alone)
        assert run_outputs(job.folder) == run_outputs(alone)
        assert got.summary == RunFolder(job.folder).summary()


def test_steps_are_taken_in_turns(jobs: list[Job]) -> None:
    order: list[int] = []
    train_concurrently(jobs[:2], on_progress=lambda n, p: order.append(n) if p is not None and p.step else None)
    assert order[:6] == [0, 1, 0, 1, 0, 1]


def test_a_run_is_given_some_steps_ahead_and_no_more(jobs: list[Job]) -> None:
    """Until the card has come to the first of them."""

    class End:
        come = False

        def query(self) -> bool:
            return self.come

    ends = [End() for _ in range(AHEAD + 1)]
    turns = Turns(0, jobs[0], iter(()), None, wait=0, keep_going=False)  # type: ignore[arg-type]
    for end in ends[:AHEAD]:
        assert not turns.ahead
        turns.given.append(end)  # type: ignore[arg-type]
    assert turns.ahead
    ends[0].come = True
    assert not turns.ahead
    turns.given.append(ends[AHEAD])  # type: ignore[arg-type]
    assert turns.ahead


def test_what_the_host_does_without_the_card_comes_before_it_waits_for_it(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next epoch is drawn first, and what a card is asked for is not read at once."""
    order: list[object] = []
    plan = Batches.plan_epoch
    monkeypatch.setattr(Batches, "plan_epoch", lambda b, epoch, **how: order.append(epoch) or plan(b, epoch, **how))
    monkeypatch.setattr(loop_module, "wait_for_device", lambda _: order.append("wait") or ())
    for name in ("ask", "evaluate", "save"):
        noted = getattr(TrainingLoop, name)
        monkeypatch.setattr(TrainingLoop, name, lambda *a, name=name, noted=noted: order.append(name) or noted(*a))
    end = ["wait", "ask", "wait", "evaluate"]
    train(jobs[1].run)
    assert order[:11] == [0, 1, *end, 2, *end]
    order.clear()
    train(jobs[1].run, checkpoint_seconds=0)
    assert order[:5] == [0, "wait", "save", "wait", "save"]


def test_others_go_on_while_one_waits_for_the_card(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "wait_for_device", lambda _: iter([None] * 3))
    order: list[int] = []
    train_concurrently(jobs[:2], on_progress=lambda n, p: order.append(n) if p is not None and p.step else None)
    assert order[:2] == [0, 1]
    assert {first == second for first, second in itertools.pairwise(order)} == {True, False}
    for job in jobs[:2]:
        train(job.run, folder=tmp_path / "alone" / job.folder.name)
        assert run_outputs(job.folder) == run_outputs(tmp_path / "alone" / job.folder.name)


def test_a_run_that_diverges_is_reported_and_the_others_go_on(jobs: list[Job]) -> None:
    wild = Job(run=dataclasses.replace(jobs[0].run, lr=1e30), folder=jobs[0].folder)
    first, second = train_concurrently([wild, jobs[1]])
    assert "learning rate 1e+30" in str(first.failure)
    assert second.summary is not None


def test_a_run_that_is_refused_is_reported_and_the_others_go_on(jobs: list[Job]) -> None:
    wrong = Job(run=dataclasses.replace(jobs[0].run, net="timm:no_such_net"), folder=jobs[0].folder)
    with pytest.raises(InputError, match="no_such_net"):
        train_concurrently([jobs[1], wrong])
    first, second = train_concurrently([wrong, jobs[1]], resume=True, keep_going=True)
    assert "no_such_net" in str(first.failure)
    assert (first.rejected, first.busy) == (True, False)
    assert second.summary is not None


def test_a_run_that_another_process_holds_breaks_no_other_off(jobs: list[Job]) -> None:
    """It is found out when its turn comes, while another is under way."""
    with pytest.raises(RunStopped):
        train(jobs[2].run, folder=jobs[2].folder, stop=lambda: True)
    with RunFolder(jobs[2].folder).lock():
        outcomes = train_concurrently(jobs, concurrent=2, resume=True, keep_going=True)
    assert [one.busy for one in outcomes] == [False, False, True, False]
    assert [one.summary is not None for one in outcomes] == [True, True, False, True]


def test_a_stop_saves_all_and_all_go_on(jobs: list[Job], tmp_path: Path) -> None:
    calls = iter(range(10**6))
    with pytest.raises(RunStopped):
        train_concurrently(jobs, concurrent=2, stop=lambda: next(calls) >= 7)
    assert [RunFolder(job.folder).checkpoint.exists() for job in jobs] == [True, True, False, False]
    train_concurrently(jobs, resume=True)
    for job in jobs:
        alone = tmp_path / "alone" / job.folder.name
        train(job.run, folder=alone)
        assert run_outputs(job.folder) == run_outputs(alone)


def test_a_stop_says_what_is_lost_whichever_run_lost_it(jobs: list[Job]) -> None:
    noisy = Job(run=dataclasses.replace(jobs[1].run, noise="feature:0.4"), folder=jobs[1].folder)
    for order in ([jobs[0], noisy], [noisy, jobs[0]]):
        with pytest.raises(RunStopped, match="the network behind the noise will begin anew"):
            train_concurrently(order, resume=True, stop=lambda: True)


def test_finished_runs_are_left_alone_and_every_folder_is_checked_first(jobs: list[Job]) -> None:
    train(jobs[1].run, folder=jobs[1].folder)
    before = folder_contents(jobs[1].folder)
    with pytest.raises(InputError, match="holds a run already"):
        train_concurrently(jobs)
    assert not jobs[0].folder.exists()
    outcomes = train_concurrently(jobs[:2], resume=True)
    assert folder_contents(jobs[1].folder) == before
    assert outcomes[1].summary == RunFolder(jobs[1].folder).summary()


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_run_held_is_free_when_the_next_begins(
    jobs: list[Job], recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the collector of cycles: a long list of runs must fit where the first did."""
    held: list[weakref.ref[Method]] = []
    left: list[int] = []

    class Watched(Engine):
        def __init__(self, method: Method, batch_of: Any, **how: Any) -> None:
            left.append(sum(one() is not None for one in held))
            held.append(weakref.ref(method))
            super().__init__(method, batch_of, **{**how, "recorded": recorded, "compiled": False})

    monkeypatch.setattr(loop_module, "Engine", Watched)
    chosen = [job for job in jobs if job.run.method != "co-teaching"]
    gc.collect()
    gc.disable()
    try:
        train_concurrently(chosen, concurrent=1)
    finally:
        gc.enable()
    assert left == [0, 0, 0]
