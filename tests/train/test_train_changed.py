"""A run goes on with the data it was started with, wherever it lies, and with no other."""

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
from metalabelnet.train import RunFolder, RunStopped, data_digest, recipe, train
from metalabelnet.train.prepare import prepare
from tiny_data import CLASSES, folder_contents, table_samples, tiny_run, write_npz

X, Y = table_samples(80, seed=0)


def begin(data: Path, folder: Path) -> Any:
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
    ids=["a row less", "a sample", "a label", "a class", "the test part"],
)
def test_data_that_has_changed_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    data, folder = write_npz(tmp_path / "tiny.npz"), tmp_path / "run"
    run = begin(data, folder)
    before = folder_contents(folder)
    write_npz(data, **changes)
    with pytest.raises(InputError, match="run: the data has changed since the run was started: bring it back") as error:
        train(run, folder=folder, resume=True)
    assert "\n" not in str(error.value)
    assert folder_contents(folder) == before
    write_npz(data)
    train(run, folder=folder, resume=True)
    assert RunFolder(folder).finished


def test_a_category_that_was_renamed_is_a_change(tmp_path: Path) -> None:
    lines = [f"{k},{('red', 'blue')[k % 2]},{'ab'[k % 2]},{'yes' if k % 3 == 0 else ''}" for k in range(40)]
    data = tmp_path / "table.csv"
    data.write_text("\n".join(["size,color,label,checked", *lines]))
    how: dict[str, Any] = {
        "method": "cross-entropy",
        "clean_column": "checked",
        "epochs": 2,
        "warmup": 1,
        "device": "cpu",
    }
    run = recipe(str(data), **how)
    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "run", stop=lambda: True)
    good = data.read_text()
    for old, new in (("red", "green"), ("\n7,", "\n70,"), ("\n9,", "\n90,"), ("\n7,blue,b", "\n7,blue,a")):
        data.write_text(good.replace(old, new))
        with pytest.raises(InputError, match="the data has changed"):
            train(run, folder=tmp_path / "run", resume=True)
    data.write_text(good)
    train(run, folder=tmp_path / "run", resume=True)


def test_a_folder_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = begin(write_npz(tmp_path / "tiny.npz"), folder)
    about = json.loads((folder / "run.json").read_text())
    del about["data_digest"]
    (folder / "run.json").write_text(json.dumps(about))
    train(run, folder=folder, resume=True)
    assert RunFolder(folder).finished


def on_disk(problem: Problem, folder: Path) -> Problem:
    x = problem.train.x
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    stored[0] = x  # type: ignore[assignment]
    return dataclasses.replace(problem, train=dataclasses.replace(problem.train, x=stored))


@pytest.mark.parametrize("most", [data_digest.MOST, 300])
def test_where_samples_lie_and_the_last_digits_of_a_mean_are_no_change(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_digest, "MOST", most)
    run = tiny_run(write_npz(tmp_path / "tiny.npz"))
    problem = prepare(run)
    found = data_digest.digest(run, problem)
    assert data_digest.digest(run, on_disk(problem, tmp_path)) == found
    table = dataclasses.replace(problem, cells_digest="what was read")
    found = data_digest.digest(run, table)
    near = dataclasses.replace(problem.train, x=problem.train.x + 1e-6)
    assert data_digest.digest(run, dataclasses.replace(table, train=near)) == found
    assert data_digest.digest(run, dataclasses.replace(table, cells_digest="other cells")) != found


def test_labels_that_a_probe_has_spoilt_may_differ(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "tiny.npz")
    problem = prepare(tiny_run(data))
    others = dataclasses.replace(problem, train=problem.train.with_given_labels(torch.zeros_like(problem.train.given)))
    for noise, differ in (("feature:0.4", False), ("uniform:0.4", True)):
        run = tiny_run(data, noise=noise)
        assert (data_digest.digest(run, problem) != data_digest.digest(run, others)) == differ
