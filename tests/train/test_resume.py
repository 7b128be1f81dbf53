"""A run that is stopped or killed at any moment resumes to the same bytes."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metalabelnet.methods import METHODS
from metalabelnet.train import RunFolder, RunStopped, train
from metalabelnet.train import checkpoint as checkpoints
from metalabelnet.train.settings import Run
from tiny_data import BASIC_METHODS, run_outputs, tiny_run, write_npz

WARMUP_STEPS, LATER_STEPS = 2 * 4, {True: 3 * 5, False: 3 * 4}  # by whether the method uses unlabeled samples
FILES = {"run.json", "metrics.jsonl", "summary.json", "model.safetensors", "labels.csv", "calibration.json"}
FILES |= {"confusion.json", "clean_set.json", "digests.json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Outputs of each method without an interruption."""
    outputs: dict[str, dict[str, Any]] = {}

    def outputs_of(method: str) -> dict[str, Any]:
        if method not in outputs:
            folder = tmp_path_factory.mktemp("uninterrupted") / method
            train(tiny_run(data, method), folder=folder)
            outputs[method] = run_outputs(folder)
        return outputs[method]

    return outputs_of


def stop_after(steps: int) -> Callable[[], bool]:
    """Return a callback that stops a run after this many steps."""
    left = [steps]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    return stop


MOMENTS = ("first", "warm-up", "end of warm-up", "phase 2 begins", "phase 2", "last")


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        pytest.param(
            *(method, moment),
            marks=() if method == "metalabelnet" or moment in ("end of warm-up", "last") else pytest.mark.slow,
        )
        for method in BASIC_METHODS
        for moment in MOMENTS
    ],
)
def test_resume_gives_same_bytes(
    method: str, moment: str, data: Path, uninterrupted: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    last = WARMUP_STEPS + LATER_STEPS[METHODS[method].traits.uses_unlabeled]
    step = {"first": 1, "warm-up": 6, "end of warm-up": WARMUP_STEPS, "phase 2 begins": WARMUP_STEPS + 1, "phase 2": 15}
    run, folder = tiny_run(data, method), tmp_path / "run"
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=stop_after(step.get(moment, last)))
    assert RunFolder(folder).checkpoint.exists()
    assert not RunFolder(folder).finished
    result = train(run, folder=folder, resume=True)
    assert run_outputs(folder) == uninterrupted(method)
    assert run_outputs(folder)["files"] == FILES
    assert result.history == RunFolder(folder).metrics()
    assert result.summary == RunFolder(folder).summary()


@pytest.mark.parametrize("method", BASIC_METHODS)
def test_number_of_steps(method: str, data: Path) -> None:
    """The moments of `test_resume_gives_same_bytes` depend on it."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    train(tiny_run(data, method), stop=count)
    assert steps == WARMUP_STEPS + LATER_STEPS[METHODS[method].traits.uses_unlabeled]


def test_stop_at_every_step_gives_same_bytes(
    data: Path, uninterrupted: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    run, stops = tiny_run(data), 0
    while True:
        try:
            train(run, folder=tmp_path / "run", resume=True, stop=stop_after(1))
        except RunStopped:
            stops += 1
        else:
            break
    assert stops == WARMUP_STEPS + LATER_STEPS[True]
    assert run_outputs(tmp_path / "run") == uninterrupted("metalabelnet")


def test_resume_with_augmentation_gives_same_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = random.integers(0, 120, (60, 8, 8), dtype=np.uint8)
    for column in range(3):
        x[y == column, :, 1 + 2 * column : 3 + 2 * column] += 100
    file = write_npz(tmp_path / "images.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    run = tiny_run(file, augment="flip-crop", unlabeled=6, net="small-cnn", epochs=3, warmup=1)
    train(run, folder=tmp_path / "uninterrupted")
    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "run", stop=stop_after(5))
    train(run, folder=tmp_path / "run", resume=True)
    assert run_outputs(tmp_path / "run") == run_outputs(tmp_path / "uninterrupted")


class PowerCutError(BaseException):
    """An exception that no handler of the library catches."""


def cut_power(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Fail at the `at`-th sync to disk, with the file half written. Return the syncs."""
    calls: list[int] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == at:
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
            raise PowerCutError
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def short_run(data: Path) -> Run:
    return tiny_run(data, epochs=2, warmup=1, batch_size=24)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_power_cut_at_any_write_gives_same_bytes(
    every: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every rename, or at every fourth of these moments and at the last."""
    with monkeypatch.context() as patch:
        syncs = cut_power(patch, at=0)
        train(short_run(data), folder=tmp_path / "uninterrupted", checkpoint_seconds=0)
    whole = run_outputs(tmp_path / "uninterrupted")
    assert len(syncs) >= 2 * (1 + 4 + 5)  # run.json, a checkpoint per step, and the results
    for at in sorted({*range(1, len(syncs) + 1, every), len(syncs)}):
        folder = tmp_path / f"cut{at}"
        with monkeypatch.context() as patch:
            cut_power(patch, at)
            with pytest.raises(PowerCutError):
                train(short_run(data), folder=folder, checkpoint_seconds=0)
        if RunFolder(folder).finished:
            assert at == len(syncs)  # summary.json is the last file
        else:
            train(short_run(data), folder=folder, resume=True)
            assert run_outputs(folder) == whole, f"cut at sync {at}"


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_lost_metrics_are_restored_from_the_checkpoint(data: Path, tmp_path: Path, left: float) -> None:
    """metrics.jsonl is not synced during the run."""
    train(tiny_run(data), folder=tmp_path / "uninterrupted")
    with pytest.raises(RunStopped):
        train(tiny_run(data), folder=tmp_path / "run", stop=stop_after(7))
    metrics = tmp_path / "run" / "metrics.jsonl"
    os.truncate(metrics, int(left * metrics.stat().st_size))
    train(tiny_run(data), folder=tmp_path / "run", resume=True)
    assert run_outputs(tmp_path / "run") == run_outputs(tmp_path / "uninterrupted")


def test_nothing_is_written_without_a_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(tiny_run(data, "cross-entropy"), checkpoint_seconds=0)
    assert len(result.history) == 5
    assert not list(tmp_path.iterdir())


def test_damaged_checkpoint_is_named(data: Path, tmp_path: Path) -> None:
    run, folder = tiny_run(data), tmp_path / "run"
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=stop_after(3))
    file = RunFolder(folder).checkpoint
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"state\.pt is not a metalabelnet checkpoint") as error:
        train(run, folder=folder, resume=True)
    assert "\n" not in str(error.value)


def test_code_in_a_checkpoint_is_not_executed(data: Path, tmp_path: Path) -> None:
    run, folder = tiny_run(data), tmp_path / "run"
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=stop_after(3))
    checkpoints.save(RunFolder(folder).checkpoint, {"method": _Evil(tmp_path / "owned")})
    checkpoints.previous(RunFolder(folder).checkpoint).unlink()
    with pytest.raises(ValueError, match="is not a metalabelnet checkpoint"):
        train(run, folder=folder, resume=True)
    assert not (tmp_path / "owned").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
