"""Samples on disk: every method does with them what it does with samples in memory, recorded or not, resumed or not."""

import dataclasses
from pathlib import Path

import pytest
import torch

from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows
from metalabelnet.engine.engine import Engine, state_tensors
from metalabelnet.methods import METHODS
from metalabelnet.train import RunStopped, train
from metalabelnet.train.build_method import build_method
from metalabelnet.train.loop import TrainingLoop
from small_runs import FAST_SETTINGS, make_batches, small_problem, small_run

PARTS = ("train", "clean", "validation", "test")


def on_disk(problem: Problem, folder: Path) -> Problem:
    """The same problem with its samples in a file."""

    def moved(rows: Rows) -> Rows:
        assert isinstance(rows.x, torch.Tensor)
        stored = DiskTensor.empty(len(rows), tuple(rows.x.shape[1:]), rows.x.dtype, folder)
        stored[0] = rows.x
        return dataclasses.replace(rows, x=stored)

    return dataclasses.replace(problem, **{part: moved(getattr(problem, part)) for part in PARTS})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_does_the_same_from_disk(name: str, tmp_path: Path) -> None:
    run = small_run(name, epochs=3, warmup=1, augment="flip-crop", settings=FAST_SETTINGS.get(name, {}), snapshots=2)
    here, there = (train(run, problem=p) for p in (small_problem(9), on_disk(small_problem(9), tmp_path)))
    assert there.labels.to_csv() == here.labels.to_csv()
    assert [line["loss"] for line in there.history] == [line["loss"] for line in here.history]


@pytest.mark.parametrize("name", ["metalabelnet", "metalabelnet-plus", "gce"])
def test_steps_of_batches_from_disk_are_recorded_too(name: str, tmp_path: Path) -> None:
    """What is recorded then begins at the batch: the samples come from outside of it."""
    run, problem = small_run(name, epochs=4), on_disk(small_problem(), tmp_path)
    loop = TrainingLoop(run, problem, None, None)
    assert loop.batches.reads_from_disk
    eager, other = build_method(run, problem), build_method(run, problem)
    engine = Engine(other, loop.engine.make_batch, recorded=True, compiled=False)
    made = make_batches(run, problem, eager)
    for epoch in range(4):
        for method in (eager, other):
            method.begin_epoch(epoch)
        for batch in made.epoch(epoch, labeled_only=eager.labeled_only(epoch)):
            with torch.no_grad():
                for theirs, ours in zip(state_tensors(eager.state_dict()), state_tensors(other.state_dict()), strict=True):
                    ours.copy_(theirs)
            torch.testing.assert_close(engine.step(batch), eager.step(batch), rtol=1e-9, atol=1e-9)
            for theirs, ours in zip(state_tensors(eager.state_dict()), state_tensors(other.state_dict()), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert engine.recorded


def test_a_run_from_disk_that_was_stopped_goes_on(tmp_path: Path) -> None:
    run = small_run("metalabelnet")
    whole = train(run, problem=on_disk(small_problem(), tmp_path), folder=tmp_path / "whole")
    asked = iter([False] * 13 + [True])
    with pytest.raises(RunStopped):
        train(run, problem=on_disk(small_problem(), tmp_path), folder=tmp_path / "run", stop=asked.__next__)
    again = train(run, problem=on_disk(small_problem(), tmp_path), folder=tmp_path / "run", resume=True)
    assert again.labels.to_csv() == whole.labels.to_csv()
