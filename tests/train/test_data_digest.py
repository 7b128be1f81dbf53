"""Resuming with changed data is rejected; where the data is stored makes no difference."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.data.problem import Problem
from metalabelnet.errors import InputError
from metalabelnet.train import RunFolder, RunStopped, data_digest, make_run, train
from metalabelnet.train.prepare import prepare
from tiny_data import CLASSES, folder_contents, table_samples, tiny_run, write_npz

X, Y = table_samples(80, seed=0)


def start_and_stop(data: Path, folder: Path) -> Any:
    run = tiny_run(data, "cross-entropy", epochs=2, warmup=1)
    steps = iter(range(3))
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=lambda: next(steps) == 2)
    return run


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": X[:79], "y_train": Y[:79]},
        {"x_train": X + (np.arange(80) == 7)[:, None]},
        {"y_train": (Y + (np.arange(80) == 7)) % 3},
        {"classes": np.array([*CLASSES[:2], "renamed"])},
        {"x_test": table_samples(30, seed=2)[0]},
    ],
    ids=["missing row", "sample", "label", "class name", "test part"],
)
def test_resume_rejects_changed_data(changes: dict[str, Any], tmp_path: Path) -> None:
    data, folder = write_npz(tmp_path / "tiny.npz"), tmp_path / "run"
    run = start_and_stop(data, folder)
    before = folder_contents(folder)
    write_npz(data, **changes)
    with pytest.raises(InputError, match="run: the data has changed since the run was started: restore it") as error:
        train(run, folder=folder, resume=True)
    assert "\n" not in str(error.value)
    assert folder_contents(folder) == before
    write_npz(data)
    train(run, folder=folder, resume=True)
    assert RunFolder(folder).finished


def test_resume_rejects_changed_table_cells(tmp_path: Path) -> None:
    lines = [f"{k},{('red', 'blue')[k % 2]},{'ab'[k % 2]},{'yes' if k % 3 == 0 else ''}" for k in range(40)]
    data = tmp_path / "table.csv"
    data.write_text("\n".join(["size,color,label,checked", *lines]))
    settings: dict[str, Any] = {
        "method": "cross-entropy",
        "clean_column": "checked",
        "epochs": 2,
        "warmup": 1,
        "device": "cpu",
    }
    run = make_run(str(data), recipe="paper", **settings)
    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "run", stop=lambda: True)
    original = data.read_text()
    for old, new in (("red", "green"), ("\n7,", "\n70,"), ("\n9,", "\n90,"), ("\n7,blue,b", "\n7,blue,a")):
        data.write_text(original.replace(old, new))
        with pytest.raises(InputError, match="the data has changed"):
            train(run, folder=tmp_path / "run", resume=True)
    data.write_text(original)
    train(run, folder=tmp_path / "run", resume=True)


def test_run_folder_without_digest_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start_and_stop(write_npz(tmp_path / "tiny.npz"), folder)
    metadata = json.loads((folder / "run.json").read_text())
    del metadata["data_digest"]
    (folder / "run.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match="'data_digest' is missing"):
        train(run, folder=folder, resume=True)


def move_to_disk(problem: Problem, folder: Path) -> Problem:
    x = problem.train.x
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    stored[0] = x  # type: ignore[assignment]
    return dataclasses.replace(problem, train=dataclasses.replace(problem.train, x=stored))


@pytest.mark.parametrize("max_bytes", [data_digest.MAX_DIGESTED_BYTES, 300])
def test_digest_ignores_storage_and_rounding_of_encoded_values(
    max_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_digest, "MAX_DIGESTED_BYTES", max_bytes)
    run = tiny_run(write_npz(tmp_path / "tiny.npz"))
    problem = prepare(run)
    expected = data_digest.compute_data_digest(run, problem)
    assert data_digest.compute_data_digest(run, move_to_disk(problem, tmp_path)) == expected
    table = dataclasses.replace(problem, cells_digest="cells")
    expected = data_digest.compute_data_digest(run, table)
    rounded = dataclasses.replace(problem.train, x=problem.train.x + 1e-6)
    assert data_digest.compute_data_digest(run, dataclasses.replace(table, train=rounded)) == expected
    assert data_digest.compute_data_digest(run, dataclasses.replace(table, cells_digest="other cells")) != expected


def test_digest_ignores_labels_of_the_noise_probe(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "tiny.npz")
    problem = prepare(tiny_run(data))
    others = dataclasses.replace(problem, train=problem.train.with_given_labels(torch.zeros_like(problem.train.given)))
    for noise, differ in (("feature:0.4", False), ("uniform:0.4", True)):
        run = tiny_run(data, noise=noise)
        assert (data_digest.compute_data_digest(run, problem) != data_digest.compute_data_digest(run, others)) == differ
