"""One reading for several runs: read once, the same for all, and nothing left of it."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.data import read_cache as readings_module
from metalabelnet.data.disk_tensor import DiskTensor, reduction
from metalabelnet.data.files import reader
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.data.rows import DataSet
from metalabelnet.launch.process_pool import Job, train_all
from metalabelnet.train import recipe, train
from metalabelnet.train.prepare import read
from metalabelnet.train.settings import Run
from tiny import outcome, tiny_run, write_npz

METHODS = ("cross-entropy", "fine-tune", "gce")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, and a data folder in which nothing may be left."""
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path / "data"))
    g = torch.Generator().manual_seed(0)
    lines = [f"{k % 3 + float(torch.rand(1, generator=g)):.4f},{'abc'[k % 3]},{int(k < 30)}" for k in range(90)]
    (tmp_path / "table.csv").write_text("\n".join(["size,label,ok", *lines]))
    return tmp_path / "table.csv"


def run_of(table: Path, method: str = "gce", **changes: Any) -> Run:
    return recipe(str(table), **{"method": method, "clean_column": "ok", "epochs": 2, "device": "cpu", **changes})


def left_in_data(table: Path) -> list[Path]:
    folder = table.parent / "data"
    return list(folder.iterdir()) if folder.exists() else []


def tensors(data: DataSet) -> list[torch.Tensor]:
    parts = [part for part in (data.train, data.clean, data.test) if part is not None]
    return [getattr(part, name)[:] for part in parts for name in ("x", "given", "true", "index")]


class Duplicate:
    """What `multiprocessing` makes of an open file when it starts a process, within one process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        import os

        return os.dup(self.number)


@pytest.mark.parametrize(("small", "limit"), [(1 << 24, None), (0, None), (0, 0.0)])
def test_kept_and_sent_it_is_what_was_read(
    small: int, limit: float | None, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By value, mapped, and streamed."""
    monkeypatch.setattr(readings_module, "SMALL", small)
    monkeypatch.setattr(reduction, "DupFd", Duplicate)
    run = run_of(table, memory_limit=limit)
    plain, read_cache = read(run), ReadCache()
    first = read(run, read_cache=read_cache)
    assert isinstance(first.train.x, DiskTensor) == (limit is not None)
    assert left_in_data(table) == []  # while it is used: whoever is killed leaves nothing
    sent: ReadCache = pickle.loads(pickle.dumps(read_cache.to_send()))
    table.unlink()
    for data in (first, read(run, read_cache=read_cache), read(run, read_cache=sent)):
        assert (data.notes, data.inputs, data.classes) == (plain.notes, plain.inputs, plain.classes)
        assert data.train.ids == plain.train.ids
        assert all(torch.equal(a, b) for a, b in zip(tensors(data), tensors(plain), strict=True))


def test_what_a_run_changes_in_mapped_samples_is_its_own(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings_module, "SMALL", 0)
    read_cache = ReadCache()
    x = read(run_of(table), read_cache=read_cache).train.x
    assert isinstance(x, torch.Tensor)
    before = x.clone()
    x.zero_()
    assert torch.equal(read(run_of(table), read_cache=read_cache).train.x[:], before)


def test_other_data_is_read_anew(table: Path) -> None:
    read_cache = ReadCache()
    here = read(run_of(table, true_label="label"), read_cache=read_cache)
    assert here.train.true.max() >= 0 > read(run_of(table), read_cache=read_cache).train.true.max()


def test_where_no_file_can_be_made_every_process_reads_for_itself(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings_module, "SMALL", 0)
    (table.parent / "data").write_text("no folder")
    read_cache = ReadCache(at_a_time=2)
    data = read(run_of(table), read_cache=read_cache)
    table.write_text("gone")
    assert torch.equal(read(run_of(table), read_cache=read_cache).train.x[:], data.train.x[:])
    sent = read_cache.to_send()
    assert sent is not read_cache
    assert (sent.at_a_time, sent._kept) == (2, {})


def test_runs_in_this_process_read_once(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[Path] = []
    really = reader.read

    def watched(path: Path, *more: Any) -> DataSet:
        times.append(path)
        return really(path, *more)

    jobs = [Job(run=run_of(table, name, seed=s), folder=tmp_path / f"{name}{s}") for name in METHODS for s in (0, 1)]
    for job in jobs:
        train(job.run, folder=tmp_path / "alone" / job.folder.name)
    monkeypatch.setattr(reader, "read", watched)
    train_all(jobs)
    assert len(times) == 1
    for job in jobs:
        assert outcome(job.folder) == outcome(tmp_path / "alone" / job.folder.name)


def test_processes_are_given_what_was_read(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the data is gone when they start: a process that read for itself would fail."""
    monkeypatch.setattr(readings_module, "SMALL", 0)
    jobs = [Job(run=run_of(table, name), folder=tmp_path / name) for name in METHODS]
    # by processes too: on some processors a new one differs from this one, after other tests, in the last bit
    train_all([Job(run=job.run, folder=tmp_path / "alone" / job.run.method) for job in jobs], workers=2)
    read_cache = ReadCache(at_a_time=2)
    read(jobs[0].run, read_cache=read_cache)
    table.write_text("gone")
    assert all(o.summary for o in train_all(jobs, workers=2, read_cache=read_cache))
    for job in jobs:
        assert outcome(job.folder) == outcome(tmp_path / "alone" / job.run.method)
    assert left_in_data(table) == []


def test_arrays_are_shared_too(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "tiny.npz")
    read_cache = ReadCache()
    before = read(tiny_run(data), read_cache=read_cache)
    data.unlink()
    assert torch.equal(read(tiny_run(data, "gce", seed=3), read_cache=read_cache).train.x[:], before.train.x[:])


def test_several_runs_at_a_time_share_the_room(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 rows of one column, half of what is free."""
    monkeypatch.setattr(reader, "room_for_samples", lambda gib, card, runs: 90 * 4 * 2 // runs)
    assert isinstance(read(run_of(table), read_cache=ReadCache(2)).train.x, torch.Tensor)
    assert isinstance(read(run_of(table), read_cache=ReadCache(3)).train.x, DiskTensor)
