"""The host queues a few batches ahead of a GPU: fakes of streams and events, and batches in their order."""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.data import batches as batches_module
from metalabelnet.data import disk_tensor, queue_limit
from metalabelnet.data.disk_tensor import DiskTensor, chunks
from metalabelnet.data.queue_limit import MAX_QUEUED, MAX_QUEUED_BYTES, QueueLimit
from metalabelnet.train.build_method import build_method
from small_runs import make_batches, small_problem, small_run


class FakeGpu:
    """A GPU that computes only while the host waits for it, and so as late as it can."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unfinished: deque[FakeEvent] = deque()
        self.waited_for: list[FakeEvent] = []
        self.events: list[FakeEvent] = []
        monkeypatch.setattr(queue_limit.torch.cuda, "current_stream", lambda device: (self, device))
        monkeypatch.setattr(queue_limit.torch.cuda, "Event", self.make_event)

    def make_event(self, *, blocking: bool) -> "FakeEvent":
        assert blocking, "the thread would use a core while it waits"
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def record(self, stream: Any) -> None:
        assert stream == (self.gpu, torch.device("cuda:1"))
        self.gpu.events.append(self)
        self.gpu.unfinished.append(self)

    def synchronize(self) -> None:
        self.gpu.waited_for.append(self)
        while self in self.gpu.unfinished:
            self.gpu.unfinished.popleft()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_number_of_queued_batches(gpu: FakeGpu) -> None:
    """No wait for the first ones; then for the oldest, one at a time."""
    limit = QueueLimit(torch.device("cuda:1"))
    for k in range(20):
        limit.add(1000)
        assert len(gpu.unfinished) == min(k + 1, MAX_QUEUED)
    assert gpu.waited_for == gpu.events[: 20 - MAX_QUEUED]


@pytest.mark.parametrize("sizes", [[40, 40, 40, 40], [60, 60, 10, 10, 90, 5], [30, 200, 30, 30, 300, 1, 1], [500, 500]])
def test_bytes_of_queued_batches(sizes: list[int], gpu: FakeGpu) -> None:
    """Sizes in per cent of the limit. It is exceeded by a single batch only, and the last batch is never waited for."""
    limit = QueueLimit(torch.device("cuda:1"))
    for k, size in enumerate(sizes):
        limit.add(size * MAX_QUEUED_BYTES // 100)
        queued = sizes[k + 1 - len(gpu.unfinished) : k + 1]
        assert 1 <= len(queued) <= MAX_QUEUED
        assert sum(queued) <= 100 or len(queued) == 1
        waited_for = sizes[: k + 1 - len(queued)]
        assert not waited_for or len(queued) == MAX_QUEUED or waited_for[-1] + sum(queued) > 100  # no needless wait
    assert gpu.waited_for == gpu.events[: len(gpu.waited_for)]


def test_cpu_has_no_queue(gpu: FakeGpu) -> None:
    limit = QueueLimit(torch.device("cpu"))
    for _ in range(9):
        limit.add(MAX_QUEUED_BYTES)
    assert gpu.events == []


class RecordingLimit:
    """Stands for QueueLimit where batches are made."""

    sizes: list[int]

    def __init__(self, device: torch.device) -> None:
        type(self).sizes = []

    def add(self, size: int) -> None:
        self.sizes.append(size)


def on_disk(x: torch.Tensor, folder: Path) -> DiskTensor:
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    stored[0] = x
    return stored


def test_batches_from_disk_are_counted_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is counted with its bytes after it was used; the batches are those from memory."""
    monkeypatch.setattr(batches_module, "QueueLimit", RecordingLimit)
    run, problem = small_run("metalabelnet"), small_problem()
    in_memory = make_batches(run, problem, build_method(run, problem))
    moved = {
        part: replace(rows, x=on_disk(rows.x, tmp_path))
        for part, rows in (("train", in_memory.train), ("clean", in_memory.clean))
    }
    seen = 0
    pairs = zip(
        replace(in_memory, **moved).epoch(2, labeled_only=False), in_memory.epoch(2, labeled_only=False), strict=True
    )
    for batch, expected in pairs:
        assert len(RecordingLimit.sizes) == seen
        assert torch.equal(batch.index, expected.index)
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.clean_x, expected.clean_x)
        seen += 1
    row_bytes = problem.train.x[:1].nbytes
    assert RecordingLimit.sizes == [(len(expected.x) + len(expected.clean_x)) * row_bytes] * seen


def test_chunks_from_disk_are_counted_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tensor, "QueueLimit", RecordingLimit)
    x = torch.arange(9000).view(1500, 6)
    assert torch.equal(torch.cat(list(chunks(on_disk(x, tmp_path)))), x)
    assert sum(RecordingLimit.sizes) == x.nbytes
