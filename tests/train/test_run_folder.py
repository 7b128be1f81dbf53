"""Run folders: rejected without changes, and intact after a full disk or divergence."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data.batches import Batch
from metalabelnet.errors import InputError
from metalabelnet.methods.cross_entropy import CrossEntropy
from metalabelnet.train import DivergenceError, Run, RunFolder, RunStopped, train
from metalabelnet.train import checkpoint as checkpoints
from tiny_data import folder_contents, run_outputs, tiny_run, write_npz


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "tiny.npz")


def stop_after(steps: int) -> Callable[[], bool]:
    left = iter(range(steps - 1, -1, -1))
    return lambda: next(left) == 0


@pytest.mark.parametrize("finished", [True, False])
def test_run_is_not_overwritten(finished: bool, data: Path, tmp_path: Path) -> None:
    run, folder = tiny_run(data, "cross-entropy", epochs=2), tmp_path / "run"
    if finished:
        train(run, folder=folder)
    else:
        with pytest.raises(RunStopped):
            train(run, folder=folder, stop=stop_after(3))
    before = folder_contents(folder)
    with pytest.raises(InputError, match="already holds a run: resume it with --resume"):
        train(run, folder=folder)
    assert folder_contents(folder) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "fine-tune"),
        ("settings", {"beta": 0.5}),
        ("noise", "uniform:0.3"),
        ("clean", 21),
        ("epochs", 6),
        ("lr", 0.04),
        ("lr_milestones", (3,)),
        ("seed", 1),
        ("protocol", "paper"),
        ("dtype", "float64"),
    ],
)
def test_resume_rejects_other_settings(name: str, value: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunStopped):
        train(tiny_run(data), folder=folder, stop=stop_after(2))
    before = folder_contents(folder)
    with pytest.raises(InputError, match=f"was started with {name} = ") as error:
        train(tiny_run(data, **{name: value}), folder=folder, resume=True)
    assert repr(json.loads(json.dumps(value))) in str(error.value)
    assert folder_contents(folder) == before


def test_folder_with_other_files_is_rejected(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"sun")
    before = folder_contents(folder)
    for resume in (False, True):
        with pytest.raises(InputError, match=r"is not empty and has no run\.json"):
            train(tiny_run(data), folder=folder, resume=resume)
    assert folder_contents(folder) == before


def test_empty_and_missing_folders_are_accepted(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "not" / "yet" / "there"):
        train(tiny_run(data, "cross-entropy", epochs=1), folder=folder)
        assert RunFolder(folder).finished


@pytest.mark.parametrize("under", ["", "run", "deep/er"])
def test_path_through_a_file_is_rejected(under: str, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match="is a file: choose another folder"):
        train(tiny_run(data), folder=file / under)
    assert file.read_text() == "mine"


def test_read_only_folder_is_rejected_before_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr("metalabelnet.train.train_run.prepare", lambda run: pytest.fail("training has started"))
    with pytest.raises(InputError, match="is not writable: choose another folder"):
        train(tiny_run(data), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["summary", "metrics"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"epoch": 0', "cannot be read"),
        ("{}", "is not a file of a metalabelnet run"),
        ("[1]", "is not a file of a metalabelnet run"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_damaged_file_is_named(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / {"summary": "summary.json", "metrics": "metrics.jsonl"}[name]
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=f"{file} {message}") as error:
        getattr(RunFolder(tmp_path), name)()
    assert "\n" not in str(error.value)


COMPLETE = {"classes": [], "shape": [4], "bytes": True, "data_digest": "", "own_net": None, "method_settings": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run folder: it has no run.json"),
        ("{", "cannot be read"),
        ("{}", "is not a file of a metalabelnet run"),
        ("[1]", "is not a file of a metalabelnet run"),
        (json.dumps(COMPLETE | {"run": {"speed": 3}}), "written by another version"),
    ],
)
def test_folder_that_is_not_a_run_is_rejected(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=message):
        RunFolder(tmp_path).run()
    if "version" not in message:
        with pytest.raises(InputError, match=message):
            RunFolder(tmp_path).summary()


def test_folder_of_runs_names_one_of_them(tmp_path: Path) -> None:
    for name in ("b-seed0", "a-seed0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(InputError, match=f"holds run folders: give one, such as {tmp_path / 'a-seed0'}$"):
        RunFolder(tmp_path).summary()


def test_run_json_content(data: Path, tmp_path: Path) -> None:
    run = tiny_run(data, settings={"beta": 0.02})
    train(run, folder=tmp_path / "run")
    metadata = json.loads((tmp_path / "run" / "run.json").read_text())
    assert RunFolder(tmp_path / "run").run() == run
    assert metadata["classes"] == ["a", 'b, "c"', "ü – 文"]
    assert metadata["shape"] == [4]
    assert metadata["versions"]["torch"] == torch.__version__
    expected = {"run", "method_settings", "classes", "shape", "bytes", "own_net", "data_digest", "versions", "commit"}
    assert set(metadata) == expected | {"executed"}


def test_summary_content(data: Path, tmp_path: Path) -> None:
    train(tiny_run(data), folder=tmp_path / "run")
    s = RunFolder(tmp_path / "run").summary()
    keys = (
        "method dataset noise seed epochs selected_epoch clean_accuracy test_accuracy test_accuracy_last macro_f1 ece"
    )
    assert set(keys.split()) | {"seconds"} <= s.keys()
    lines = RunFolder(tmp_path / "run").metrics()
    chosen = lines[s["selected_epoch"]]
    assert s["test_accuracy"] == pytest.approx(chosen["test_accuracy"])
    assert s["clean_accuracy"] == chosen["clean_accuracy"]
    assert s["test_accuracy_last"] == lines[-1]["test_accuracy"]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3, 4]
    assert s["samples"] == {"train": 62, "clean": 14, "validation": 4, "test": 30}
    assert s["unlabeled"] == 14


# A full disk


def test_full_disk_keeps_the_last_checkpoint(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the next checkpoint is written."""
    run, folder = tiny_run(data), tmp_path / "run"
    train(run, folder=tmp_path / "uninterrupted")
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=stop_after(10))
    file = RunFolder(folder).checkpoint
    before = file.read_bytes()
    write = os.write

    def write_to_full_disk(handle: int, content: memoryview) -> int:
        if Path(f"/proc/self/fd/{handle}").readlink().name.startswith(".state.pt."):
            write(handle, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_to_full_disk)
        with pytest.raises(OSError, match="No space left on device") as error:
            train(run, folder=folder, resume=True, checkpoint_seconds=0)
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str(file)
    assert not list(folder.rglob("*.tmp"))
    assert file.read_bytes() == before
    train(run, folder=folder, resume=True)
    assert run_outputs(folder) == run_outputs(tmp_path / "uninterrupted")


@pytest.mark.parametrize("full_at", ["run.json", "metrics.jsonl", "model.safetensors", "labels.csv", "summary.json"])
def test_full_disk_at_any_file(full_at: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, folder = tiny_run(data, "cross-entropy", epochs=2), tmp_path / "run"
    train(run, folder=tmp_path / "uninterrupted")
    sync = os.fsync

    def fsync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name.startswith(f".{full_at}."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left") as error:
            train(run, folder=folder, checkpoint_seconds=0)
    assert error.value.filename == str(folder / full_at)
    assert not list(folder.rglob("*.tmp"))
    assert not RunFolder(folder).finished
    train(run, folder=folder, resume=True)
    assert run_outputs(folder) == run_outputs(tmp_path / "uninterrupted")


# Divergence


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("infinite", ["loss", "weight"])
def test_divergence_keeps_the_last_checkpoint(
    infinite: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = tiny_run(data, "cross-entropy", lr_milestones=(1,)), tmp_path / "run"
    train(run, folder=tmp_path / "uninterrupted")
    step, steps = CrossEntropy.step, []

    def diverging_step(self: CrossEntropy, batch: Batch) -> Tensor:
        loss = step(self, batch)
        steps.append(loss)
        if len(steps) == 7 and infinite == "weight":
            next(self.net.parameters()).data[0, 0] = torch.inf
        return loss * torch.nan if len(steps) == 7 and infinite == "loss" else loss

    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropy, "step", diverging_step)
        with pytest.raises(DivergenceError) as error:
            train(run, folder=folder, checkpoint_seconds=0)
    message = str(error.value)
    assert ("the loss is nan" if infinite == "loss" else "a weight is not finite") in message
    assert "at step 3 of epoch 1 with learning rate 0.005" in message
    assert f"the last checkpoint is {RunFolder(folder).checkpoint} (epoch 1, step 2)" in message
    state = checkpoints.load(RunFolder(folder).checkpoint, torch.device("cpu"))
    assert (state["epoch"], state["step"]) == (1, 2)
    found = tensors(state)
    assert len(found) > 10
    assert all(torch.isfinite(tensor).all() for tensor in found)
    train(run, folder=folder, resume=True)
    assert run_outputs(folder) == run_outputs(tmp_path / "uninterrupted")


@pytest.mark.parametrize("method", ["cross-entropy", "metalabelnet"])
def test_huge_learning_rate_raises_divergence_error(method: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match=r"at step \d+ of epoch \d with learning rate 1e\+30; .*: try a lower lr"):
        train(tiny_run(data, method, lr=1e30), folder=tmp_path / "run", checkpoint_seconds=0)
    for file in (tmp_path / "run").rglob("state.pt"):
        assert all(torch.isfinite(t).all() for t in tensors(checkpoints.load(file, torch.device("cpu"))))
    assert not RunFolder(tmp_path / "run").finished


def test_predictions_that_overflow_raise_divergence_error(data: Path) -> None:
    """One step: the weights are finite, the predictions after it are not; later, features would be NaN."""
    with pytest.raises(DivergenceError, match="the loss on clean samples is nan after epoch 0 with learning rate"):
        train(tiny_run(data, "metalabelnet-plus", net="mlp", batch_size=80, lr=1e25))


@pytest.mark.parametrize("solve", [torch.linalg.inv, lambda matrix: np.linalg.inv(matrix.numpy())])
def test_singular_matrix_raises_divergence_error(
    solve: Callable[[Tensor], object], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrossEntropy, "begin_epoch", lambda _self, _epoch: solve(torch.zeros(3, 3)))
    with pytest.raises(DivergenceError, match=r"cross-entropy: a linear system cannot be solved \(.*\), because"):
        train(tiny_run(data, "cross-entropy"))


def test_resume_rejects_a_changed_default(tmp_path: Path) -> None:
    """run.json stores the values of all settings of the method, also defaults."""
    files = RunFolder(tmp_path / "run")
    run = Run(method="metalabelnet")
    files.create(run, classes=["a", "b"], shape=[4], bytes=False, own_net=None, data_digest="")
    metadata = json.loads((files.path / "run.json").read_text())
    assert metadata["method_settings"]["beta"] == 0.01
    metadata["method_settings"]["beta"] = 0.5
    (files.path / "run.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=r"metalabelnet\.beta = 0\.5, not 0\.01"):
        files.check(run, resume=True)


def test_locked_folder_is_rejected(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunStopped):
        train(tiny_run(data), folder=folder, stop=stop_after(2))
    with RunFolder(folder).lock(), pytest.raises(InputError, match="another process is training in this folder"):
        train(tiny_run(data), folder=folder, resume=True)
    train(tiny_run(data), folder=folder, resume=True)
    assert not (folder / "checkpoint").exists()


def test_trailing_slash_of_the_data_folder_makes_no_difference(tmp_path: Path) -> None:
    """Run.data stays as the user wrote it, and the run can be resumed with or without the slash."""
    (tmp_path / "images").mkdir()
    runs = [
        Run(data=data, clean_file="clean.csv", clean="all") for data in (f"{tmp_path}/images", f"{tmp_path}/images/")
    ]
    assert [run.data[-1] for run in runs] == ["s", "/"]
    for number, (run, other) in enumerate((runs, runs[::-1])):
        files = RunFolder(tmp_path / f"run{number}")
        files.create(run, classes=["a", "b"], shape=[4], bytes=False, own_net=None, data_digest="")
        files.check(other, resume=True)
        assert files.run() == run
        with pytest.raises(InputError, match="was started with data = "):
            files.check(Run(data=f"{tmp_path}/others/", clean_file="clean.csv", clean="all"), resume=True)


def test_run_with_other_data_detects_its_format(tmp_path: Path) -> None:
    files = RunFolder(tmp_path / "run")
    (tmp_path / "images").mkdir()
    files.create(
        Run(data=f"{tmp_path}/images"), classes=["a", "b"], shape=[4], bytes=False, own_net=None, data_digest=""
    )
    assert files.run().data_format == "folder"
    assert files.run(data="table.csv").data_format == "table"
