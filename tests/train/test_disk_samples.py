"""Samples on disk give the same results as samples in memory: eager, traced and resumed."""

import dataclasses
from pathlib import Path

import pytest
import torch

from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows
from metalabelnet.engine.engine import Engine, state_tensors
from metalabelnet.methods import Method
from metalabelnet.train import RunStopped, train
from metalabelnet.train.build_method import build_method
from metalabelnet.train.loop import TrainingLoop
from small_runs import FAST_SETTINGS, TRAINED_METHODS, make_batches, small_problem, small_run, tiny_cnn

PARTS = ("train", "clean", "validation", "test")


def move_to_disk(problem: Problem, folder: Path) -> Problem:
    """Return the problem with its samples in files."""

    def move(rows: Rows) -> Rows:
        assert isinstance(rows.x, torch.Tensor)
        stored = DiskTensor.empty(len(rows), tuple(rows.x.shape[1:]), rows.x.dtype, folder)
        stored[0] = rows.x
        return dataclasses.replace(rows, x=stored)

    return dataclasses.replace(problem, **{part: move(getattr(problem, part)) for part in PARTS})


@pytest.mark.parametrize("name", TRAINED_METHODS)
def test_every_method_gives_the_same_result_from_disk(name: str, tmp_path: Path) -> None:
    run = small_run(name, epochs=3, warmup=1, augment="flip-crop", settings=FAST_SETTINGS.get(name, {}), snapshots=2)
    problems = (small_problem(9), move_to_disk(small_problem(9), tmp_path))
    in_memory, on_disk = (train(run, problem=problem, net=tiny_cnn()) for problem in problems)
    assert on_disk.labels.to_csv() == in_memory.labels.to_csv()
    assert [m["loss"] for m in on_disk.history] == [m["loss"] for m in in_memory.history]


def tensor_pairs(eager: Method, other: Method) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors of both states side by side."""
    return list(zip(state_tensors(eager.state_dict()), state_tensors(other.state_dict()), strict=True))


@pytest.mark.parametrize("name", ["metalabelnet", pytest.param("metalabelnet-plus", marks=pytest.mark.slow), "gce"])
def test_traced_steps_from_disk_equal_eager_steps(name: str, tmp_path: Path) -> None:
    """The trace starts at the batch: samples are read outside of it."""
    run, problem = small_run(name, epochs=2, warmup=1), move_to_disk(small_problem(), tmp_path)
    loop = TrainingLoop(run, problem, None, None)
    assert loop.batches.reads_from_disk
    eager, other = (build_method(run, problem, tiny_cnn()) for _ in range(2))
    engine = Engine(other, loop.engine.make_batch, traced=True, compile=False)
    batches = make_batches(run, problem, eager)
    for epoch in range(2):
        for method in (eager, other):
            method.begin_epoch(epoch)
        for batch in batches.epoch(epoch, labeled_only=eager.labeled_only(epoch)):
            with torch.no_grad():
                for theirs, ours in zip(
                    state_tensors(eager.state_dict()), state_tensors(other.state_dict()), strict=True
                ):
                    ours.copy_(theirs)
            torch.testing.assert_close(engine.step(batch), eager.step(batch), rtol=1e-9, atol=1e-9)
            for expected, actual in tensor_pairs(eager, other):
                torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert engine.traced


def test_resume_from_disk_gives_same_labels(tmp_path: Path) -> None:
    run = small_run("metalabelnet")
    whole = train(run, problem=move_to_disk(small_problem(), tmp_path), folder=tmp_path / "whole")
    asked = iter([False] * 13 + [True])
    with pytest.raises(RunStopped):
        train(run, problem=move_to_disk(small_problem(), tmp_path), folder=tmp_path / "run", stop=asked.__next__)
    again = train(run, problem=move_to_disk(small_problem(), tmp_path), folder=tmp_path / "run", resume=True)
    assert again.labels.to_csv() == whole.labels.to_csv()
