"""Samples on disk that are read like a tensor, and the memory limit above which samples go to disk."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
import threading
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metalabelnet.core.ranks import gather_rows, own_span
from metalabelnet.data.prefetch import prefetch
from metalabelnet.data.queue_limit import QueueLimit
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.data.streamed_tensor import StreamedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

GIB, MIB = 1 << 30, 1 << 20
DEFAULT_FREE_BYTES = 4 * GIB  # assumed where the system does not report its free memory
MAX_CHUNK_SAMPLES = 1024  # per forward pass in evaluation
MAX_CHUNK_VALUES = 1 << 22  # of a chunk: large images are evaluated in smaller chunks

_PREADV = getattr(os, "preadv", None)  # not available on every system


class _File:
    """An anonymous file, closed when its last reader is garbage-collected.

    Several threads may read it. Child processes inherit it through its open file descriptor.
    """

    def __init__(self, raw: Any) -> None:
        self.raw, self._descriptor = raw, raw.fileno()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self.raw.close()

    def __reduce__(self) -> Any:
        return _file_from_descriptor, (reduction.DupFd(self.raw.fileno()),)

    def read(self, memory: memoryview, start: int) -> None:
        """Fill `memory` with the bytes from offset `start`. The file position, which processes share, is not used."""
        while (count := self._read(memory, start)) < len(memory):
            if count == 0:
                raise OSError("the file of samples was truncated")
            memory, start = memory[count:], start + count

    def _read(self, memory: memoryview, start: int) -> int:
        if _PREADV is not None:
            return int(_PREADV(self._descriptor, (memory,), start))
        with self._lock:
            self.raw.seek(start)
            return int(self.raw.readinto(memory))

    def write(self, memory: memoryview, start: int) -> None:
        """Write these bytes from offset `start`."""
        with self._lock:
            self.raw.seek(start)
            while memory:  # an unbuffered write may be partial
                memory = memory[self.raw.write(memory) :]


def _file_from_descriptor(handle: Any) -> _File:
    """Return the file in a child process that inherited its descriptor."""
    return _File(os.fdopen(handle.detach(), "r+b", buffering=0))


class DiskTensor(StreamedTensor):
    """(N, …) values in an anonymous temporary file that disappears with the process.

    Rows are read by offset and not through a memory map, because the resident pages of a mapped file count towards the
    memory of the process.
    """

    def __init__(self, file: _File, sample: tuple[int, ...], dtype: torch.dtype, positions: Tensor) -> None:
        super().__init__(sample, dtype, positions)
        self._file = file

    @classmethod
    def empty(cls, rows: int, sample: tuple[int, ...], dtype: torch.dtype, folder: Path) -> DiskTensor:
        """Return space for this many rows, in an anonymous file in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        file = _File(tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115 (closed in _File.__del__)
        file.raw.truncate(rows * math.prod(sample) * dtype.itemsize)
        return cls(file, sample, dtype, torch.arange(rows))

    def __reduce__(self) -> Any:
        return _unpickle, (self._file, tuple(self.shape[1:]), self.dtype, self._positions.numpy(), str(self.device))

    def _fill(self, rows: Tensor, where: Tensor) -> None:
        memory, size = _bytes(rows), self.row_bytes
        for first, last, position in _contiguous_spans(where):
            self._file.read(memory[first * size : last * size], position * size)

    def __setitem__(self, start: int, rows: Tensor) -> None:
        """Write rows from position `start`."""
        self._file.write(_bytes(rows.contiguous()), start * self.row_bytes)

    def memory_map(self) -> Tensor:
        """Return all rows of the file as a memory-mapped tensor that processes share copy-on-write."""
        size = len(self) * self.row_bytes
        content = mmap.mmap(self._file.raw.fileno(), size, access=mmap.ACCESS_COPY)
        return torch.frombuffer(content, dtype=self.dtype).view(self.shape)


Samples = Tensor | StreamedTensor | SparseTensor


def sample_memory_bytes(limit_gib: float | None, gpu_free_bytes: int | None = None, concurrent_runs: int = 1) -> int:
    """Return how many bytes of memory samples may take.

    That is `limit_gib` if given, else half of the free memory (4 GiB is assumed free where the system does not report
    it). Samples in memory are moved to the GPU, so half of its free memory is a limit too. Concurrent runs hold one
    copy each and share the limit.
    """
    if limit_gib is not None:
        return int(limit_gib * GIB)
    free = [DEFAULT_FREE_BYTES]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError, StopIteration):  # Linux: MemAvailable also counts reclaimable caches
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])]
    with contextlib.suppress(OSError, ValueError):  # the limit of a container
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free.append(max(0, limit - used))
    return min([*free, *([] if gpu_free_bytes is None else [gpu_free_bytes])]) // 2 // concurrent_runs


def chunk_size(sample: tuple[int, ...]) -> int:
    """Return how many samples of this shape are processed at a time."""
    return max(1, min(MAX_CHUNK_SAMPLES, MAX_CHUNK_VALUES // max(1, math.prod(sample))))


def chunks(x: Samples) -> Iterator[Tensor]:
    """Yield all samples in order, a chunk at a time; samples that are streamed are prefetched.

    Of streamed samples each rank reads its share of a chunk, and sends it to the others.
    """
    size = chunk_size(tuple(x.shape[1:]))
    slices = [slice(start, start + size) for start in range(0, len(x), size)]
    if isinstance(x, StreamedTensor):
        spans = [range(len(x))[s] for s in slices]
        shares = [slice(s.start + own.start, s.start + own.stop) for s in spans for own in [own_span(len(s))]]
        limit = QueueLimit(x.device)
        with contextlib.closing(prefetch(x.read, shares, threads=x.read_threads)) as read:
            for chunk in map(gather_rows, map(x.to_device, read), map(len, spans)):
                size = chunk.nbytes
                yield chunk
                del chunk  # before the next one is read
                limit.add(size)
    else:
        yield from map(x.__getitem__, slices)


def map_chunks(function: Callable[[Tensor], Tensor], x: Samples) -> Tensor:
    """Return the results of all chunks in one tensor; a function of a chunk returns a row for each sample.

    A result is copied and freed before the next chunk is read. A list of small results between large chunks would
    fragment the heap: the memory of each chunk would not be used again.
    """
    found: Tensor | None = None
    start = 0
    for chunk in chunks(x):
        part = function(chunk)
        if found is None:
            found = part.new_empty(len(x), *part.shape[1:])
        found[start : start + len(part)] = part
        start += len(part)
        del part
    if found is None:
        raise ValueError("no samples")
    return found


def _unpickle(
    file: _File, sample: tuple[int, ...], dtype: torch.dtype, positions: NDArray[np.int64], device: str
) -> DiskTensor:
    """Return the rows in a child process that inherited their file."""
    return DiskTensor(file, sample, dtype, torch.from_numpy(positions)).to(device)


def _bytes(rows: Tensor) -> memoryview:
    """Return the memory of the rows."""
    return memoryview(rows.numpy().reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _contiguous_spans(where: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield spans `first` to `last` of consecutive positions, with the first position: each is one read."""
    breaks = ((where[1:] - where[:-1]) != 1).nonzero()[:, 0] + 1
    ends = [*breaks.tolist(), len(where)]
    starts = [0, *ends[:-1]]
    yield from zip(starts, ends, where[starts].tolist(), strict=True)
