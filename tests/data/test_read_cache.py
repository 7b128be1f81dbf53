"""The read cache: data is read once, equal for all runs, and leaves no files."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.data import read_cache as module
from metalabelnet.data.disk_tensor import DiskTensor, reduction
from metalabelnet.data.files import reader
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.data.rows import DataSet
from metalabelnet.launch.process_pool import Job, train_all
from metalabelnet.train import make_run, train
from metalabelnet.train.prepare import read_data
from metalabelnet.train.settings import Run
from tiny_data import run_outputs, tiny_run, write_npz

METHODS = ("cross-entropy", "fine-tune", "gce")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, and a data folder that must stay empty."""
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path / "data"))
    g = torch.Generator().manual_seed(0)
    lines = [f"{k % 3 + float(torch.rand(1, generator=g)):.4f},{'abc'[k % 3]},{int(k < 30)}" for k in range(90)]
    (tmp_path / "table.csv").write_text("\n".join(["size,label,ok", *lines]))
    return tmp_path / "table.csv"


def run_of(table: Path, method: str = "gce", **changes: Any) -> Run:
    return make_run(
        str(table), recipe="paper", **{"method": method, "clean_column": "ok", "epochs": 2, "device": "cpu", **changes}
    )


def files_in_data_folder(table: Path) -> list[Path]:
    folder = table.parent / "data"
    return list(folder.iterdir()) if folder.exists() else []


def tensors(data: DataSet) -> list[torch.Tensor]:
    parts = [part for part in (data.train, data.clean, data.test) if part is not None]
    return [getattr(part, name)[:] for part in parts for name in ("x", "given", "true", "index")]


class Duplicate:
    """Stands in for the file descriptor that `multiprocessing` duplicates when it starts a process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        import os

        return os.dup(self.number)


@pytest.mark.parametrize(("small", "limit"), [(1 << 24, None), (0, None), (0, 0.0)])
def test_cached_and_pickled_data_equal_the_data_read(
    small: int, limit: float | None, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickled, memory-mapped, and on disk."""
    monkeypatch.setattr(module, "MAX_PICKLED_BYTES", small)
    monkeypatch.setattr(reduction, "DupFd", Duplicate)
    run = run_of(table, memory_limit=limit)
    plain, read_cache = read_data(run), ReadCache()
    first = read_data(run, read_cache=read_cache)
    assert isinstance(first.train.x, DiskTensor) == (limit is not None)
    assert files_in_data_folder(table) == []  # also while it is used: a killed process leaves no file
    sent: ReadCache = pickle.loads(pickle.dumps(read_cache.for_subprocess()))
    table.unlink()
    for data in (first, read_data(run, read_cache=read_cache), read_data(run, read_cache=sent)):
        assert (data.notes, data.encoder_config, data.classes) == (plain.notes, plain.encoder_config, plain.classes)
        assert data.train.ids == plain.train.ids
        assert all(torch.equal(a, b) for a, b in zip(tensors(data), tensors(plain), strict=True))


def test_mapped_samples_are_copy_on_write(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PICKLED_BYTES", 0)
    read_cache = ReadCache()
    x = read_data(run_of(table), read_cache=read_cache).train.x
    assert isinstance(x, torch.Tensor)
    before = x.clone()
    x.zero_()
    assert torch.equal(read_data(run_of(table), read_cache=read_cache).train.x[:], before)


def test_other_options_read_again(table: Path) -> None:
    read_cache = ReadCache()
    here = read_data(run_of(table, true_label="label"), read_cache=read_cache)
    assert here.train.true.max() >= 0 > read_data(run_of(table), read_cache=read_cache).train.true.max()


def test_without_a_writable_folder_every_process_reads_itself(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PICKLED_BYTES", 0)
    (table.parent / "data").write_text("no folder")
    read_cache = ReadCache(concurrent_runs=2)
    data = read_data(run_of(table), read_cache=read_cache)
    table.write_text("gone")
    assert torch.equal(read_data(run_of(table), read_cache=read_cache).train.x[:], data.train.x[:])
    sent = read_cache.for_subprocess()
    assert sent is not read_cache
    assert (sent.concurrent_runs, sent._data) == (2, {})


def test_runs_in_one_process_read_once(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    original = reader.read

    def recording_read(path: Path, *more: Any) -> DataSet:
        reads.append(path)
        return original(path, *more)

    jobs = [Job(run=run_of(table, name, seed=s), folder=tmp_path / f"{name}{s}") for name in METHODS for s in (0, 1)]
    for job in jobs:
        train(job.run, folder=tmp_path / "alone" / job.folder.name)
    monkeypatch.setattr(reader, "read", recording_read)
    train_all(jobs)
    assert len(reads) == 1
    for job in jobs:
        assert run_outputs(job.folder) == run_outputs(tmp_path / "alone" / job.folder.name)


def test_processes_inherit_the_cache(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data file is overwritten before they start: a process that reads itself would fail."""
    monkeypatch.setattr(module, "MAX_PICKLED_BYTES", 0)
    jobs = [Job(run=run_of(table, name), folder=tmp_path / name) for name in METHODS]
    read_cache = ReadCache(concurrent_runs=2)
    read_data(jobs[0].run, read_cache=read_cache)
    table.write_text("gone")
    assert all(o.summary for o in train_all(jobs, workers=2, read_cache=read_cache))
    assert files_in_data_folder(table) == []


def test_npz_data_is_cached_too(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "tiny.npz")
    read_cache = ReadCache()
    before = read_data(tiny_run(data), read_cache=read_cache)
    data.unlink()
    assert torch.equal(read_data(tiny_run(data, "gce", seed=3), read_cache=read_cache).train.x[:], before.train.x[:])


def test_concurrent_runs_share_the_memory_limit(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 rows of one column take half of the free memory."""
    monkeypatch.setattr(reader, "sample_memory_bytes", lambda limit_gib, gpu_free_bytes, runs: 90 * 4 * 2 // runs)
    assert isinstance(read_data(run_of(table), read_cache=ReadCache(2)).train.x, torch.Tensor)
    assert isinstance(read_data(run_of(table), read_cache=ReadCache(3)).train.x, DiskTensor)
