"""A run that was stopped, or cut off at any moment, ends as the one left alone: bit for bit."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metalabelnet.methods import METHODS
from metalabelnet.train import RunFolder, RunStopped, train
from metalabelnet.train import checkpoint as checkpoints
from metalabelnet.train.settings import Run
from tiny_data import BASIC_METHODS, run_outputs, tiny_run, write_npz

WARM_UP, LATER = 2 * 4, {True: 3 * 5, False: 3 * 4}  # steps
FILES = {"run.json", "metrics.jsonl", "summary.json", "model.safetensors", "labels.csv", "calibration.json"}
FILES |= {"confusion.json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What each method leaves when nothing comes between."""
    known: dict[str, dict[str, Any]] = {}

    def of(method: str) -> dict[str, Any]:
        if method not in known:
            folder = tmp_path_factory.mktemp("alone") / method
            train(tiny_run(data, method), folder=folder)
            known[method] = run_outputs(folder)
        return known[method]

    return of


def after(steps: int) -> Callable[[], bool]:
    """Says stop after so many steps."""
    left = [steps]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    return stop


@pytest.mark.parametrize("method", BASIC_METHODS)
@pytest.mark.parametrize("moment", ["first", "warm-up", "end of warm-up", "phase 2 begins", "phase 2", "last"])
def test_stopped_and_resumed_equals_left_alone(
    method: str, moment: str, data: Path, alone: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    last = WARM_UP + LATER[METHODS[method].traits.uses_unlabeled]
    step = {"first": 1, "warm-up": 6, "end of warm-up": WARM_UP, "phase 2 begins": WARM_UP + 1, "phase 2": 15}
    run, folder = tiny_run(data, method), tmp_path / "run"
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=after(step.get(moment, last)))
    assert RunFolder(folder).checkpoint.exists()
    assert not RunFolder(folder).finished
    result = train(run, folder=folder, resume=True)
    assert run_outputs(folder) == alone(method)
    assert run_outputs(folder)["files"] == FILES
    assert result.history == RunFolder(folder).metrics()
    assert result.summary == RunFolder(folder).summary()


@pytest.mark.parametrize("method", BASIC_METHODS)
def test_there_are_no_more_steps_than_those(method: str, data: Path) -> None:
    """Without this the moments above could miss what their names say."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    train(tiny_run(data, method), stop=count)
    assert steps == WARM_UP + LATER[METHODS[method].traits.uses_unlabeled]


def test_stopped_at_every_step(data: Path, alone: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    run, stops = tiny_run(data), 0
    while True:
        try:
            train(run, folder=tmp_path / "run", resume=True, stop=after(1))
        except RunStopped:
            stops += 1
        else:
            break
    assert stops == WARM_UP + LATER[True]
    assert run_outputs(tmp_path / "run") == alone("metalabelnet")


def test_images_with_augmentation_resume_too(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = random.integers(0, 120, (60, 8, 8), dtype=np.uint8)
    for column in range(3):
        x[y == column, :, 1 + 2 * column : 3 + 2 * column] += 100
    file = write_npz(tmp_path / "images.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    run = tiny_run(file, augment="flip-crop", unlabeled=6, net="small-cnn", epochs=3, warmup=1)
    train(run, folder=tmp_path / "alone")
    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "run", stop=after(5))
    train(run, folder=tmp_path / "run", resume=True)
    assert run_outputs(tmp_path / "run") == run_outputs(tmp_path / "alone")


class PowerCutError(BaseException):
    """What no handler of the library expects."""


def cut_the_power(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Let the `at`-th sync to the disk be the last thing that happens; a file is then half written."""
    calls: list[int] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == at:
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
            raise PowerCutError
        sync(handle)

    monkeypatch.setattr(checkpoints.os, "fsync", fsync)
    return calls


def short(data: Path) -> Run:
    return tiny_run(data, epochs=2, warmup=1, batch_size=24)


def test_the_power_may_fail_at_any_write(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every rename, from the first file to the last."""
    with monkeypatch.context() as patch:
        syncs = cut_the_power(patch, at=0)
        train(short(data), folder=tmp_path / "alone", checkpoint_seconds=0)
    whole = run_outputs(tmp_path / "alone")
    assert len(syncs) >= 2 * (1 + 4 + 5)  # run.json, a checkpoint a step, and what comes out
    for at in range(1, len(syncs) + 1):
        folder = tmp_path / f"cut{at}"
        with monkeypatch.context() as patch:
            cut_the_power(patch, at)
            with pytest.raises(PowerCutError):
                train(short(data), folder=folder, checkpoint_seconds=0)
        if RunFolder(folder).finished:
            assert at == len(syncs)  # summary.json is the last file
        else:
            train(short(data), folder=folder, resume=True)
            assert run_outputs(folder) == whole, f"cut at sync {at}"


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_crash_of_the_machine_may_take_the_metrics_with_it(data: Path, tmp_path: Path, left: float) -> None:
    """They are not synced while the run is under way: the checkpoint has them too."""
    train(tiny_run(data), folder=tmp_path / "alone")
    with pytest.raises(RunStopped):
        train(tiny_run(data), folder=tmp_path / "run", stop=after(7))
    metrics = tmp_path / "run" / "metrics.jsonl"
    os.truncate(metrics, int(left * metrics.stat().st_size))
    train(tiny_run(data), folder=tmp_path / "run", resume=True)
    assert run_outputs(tmp_path / "run") == run_outputs(tmp_path / "alone")


def test_without_a_folder_nothing_is_written(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(tiny_run(data, "cross-entropy"), checkpoint_seconds=0)
    assert len(result.history) == 5
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_is_none_is_named(data: Path, tmp_path: Path) -> None:
    run, folder = tiny_run(data), tmp_path / "run"
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=after(3))
    file = RunFolder(folder).checkpoint
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"state\.pt is not a checkpoint") as error:
        train(run, folder=folder, resume=True)
    assert "\n" not in str(error.value)


def test_a_checkpoint_is_never_executed(data: Path, tmp_path: Path) -> None:
    run, folder = tiny_run(data), tmp_path / "run"
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=after(3))
    torch.save({"method": _Evil(tmp_path / "owned")}, RunFolder(folder).checkpoint)
    with pytest.raises(ValueError, match="is not a checkpoint"):
        train(run, folder=folder, resume=True)
    assert not (tmp_path / "owned").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
