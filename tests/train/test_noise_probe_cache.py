"""Class probabilities of the noise probe in files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.train import noise_probe_cache
from metalabelnet.train import prepare as prepare_module
from metalabelnet.train.noise_probe import log_probabilities
from metalabelnet.train.noise_probe_cache import FOLDER, load_or_train
from metalabelnet.train.prepare import prepare
from tiny_data import table_samples, tiny_run, write_npz

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_probe_cache, "MAX_FILE_BYTES", 64 << 20)


def rows(seed: int = 0) -> Rows:
    x, y = table_samples(20, seed=seed)
    labels = torch.from_numpy(y).long()
    return make_rows(torch.from_numpy(x), labels, true=labels, classes=("a", "b", "c"), what="table")


class Training:
    """Returns other log-probabilities each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensor:
        self.calls += 1
        generator = torch.Generator().manual_seed(self.calls)
        return torch.rand(20, 3, dtype=torch.float64, generator=generator).log_softmax(1)


def test_second_call_reads_the_file(tmp_path: Path) -> None:
    train = Training()
    first, second = (load_or_train(tmp_path, rows(), train, device=CPU, net="mlp", seed=0) for _ in range(2))
    assert train.calls == 1
    assert torch.equal(first, second)
    (file,) = (tmp_path / FOLDER).iterdir()
    assert np.array_equal(np.load(file), first.numpy())


@pytest.mark.parametrize(
    "change",
    [
        lambda r: (r, {"net": "linear", "seed": 0}),
        lambda r: (r, {"net": "mlp", "seed": 1}),
        lambda r: (rows(1), {"net": "mlp", "seed": 0}),
        lambda r: (Rows(**{**vars(r), "true": r.true.flip(0)}), {"net": "mlp", "seed": 0}),
        lambda r: (r.take(torch.arange(20).flip(0)), {"net": "mlp", "seed": 0}),
    ],
    ids=["network", "seed", "samples", "labels", "order"],
)
def test_whatever_the_training_depends_on_has_its_own_file(
    tmp_path: Path, change: Callable[[Rows], tuple[Rows, dict[str, str | int]]]
) -> None:
    train = Training()
    load_or_train(tmp_path, rows(), train, device=CPU, net="mlp", seed=0)
    other, settings = change(rows())
    load_or_train(tmp_path, other, train, device=CPU, **settings)
    assert train.calls == 2
    assert len(list((tmp_path / FOLDER).iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    train = Training()
    load_or_train(tmp_path, rows(), train, device=CPU, net="mlp", seed=0)
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(content)
    again = load_or_train(tmp_path, rows(), train, device=CPU, net="mlp", seed=0)
    assert train.calls == 2
    assert np.array_equal(np.load(file), again.numpy())
    np.save(file, np.zeros((3, 3)))
    load_or_train(tmp_path, rows(), train, device=CPU, net="mlp", seed=0)
    assert train.calls == 3


def test_a_folder_that_cannot_be_written_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    train = Training()
    for _ in range(2):
        load_or_train(tmp_path / "file", rows(), train, device=CPU, net="mlp", seed=0)
    assert train.calls == 2


def test_runs_with_the_same_data_train_one_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def spy(*args: object, **options: object) -> Tensor:
        calls.append(options["seed"])
        return log_probabilities(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare_module, "log_probabilities", spy)
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path / "data"))
    data = write_npz(tmp_path / "table.npz")
    changes = ({}, {"noise": "feature:0.2", "method": "fine-tune"}, {"seed": 1}, {})
    problems = [prepare(tiny_run(data, **{"noise": "feature:0.4", **change})) for change in changes]
    assert calls == [0, 1]
    assert torch.equal(problems[0].train.given, problems[3].train.given)
    assert len(list((tmp_path / "data" / FOLDER).iterdir())) == 2
