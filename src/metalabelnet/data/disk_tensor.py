"""Samples on disk: like a tensor to whoever takes rows out of it, and never in memory as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import tempfile
import threading
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metalabelnet.data.prefetch import ahead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_PREADV = getattr(os, "preadv", None)  # not on every system
CHUNK = 1024  # samples that go through a network at a time, where nothing is learned
MOST_VALUES = 1 << 22  # in a chunk: large images go through a network in smaller ones


class _File:
    """A file without a name, closed when the last that reads it has gone.

    Several threads may read it, and processes that are given it when they start: it is passed on as it is open.
    """

    def __init__(self, raw: Any) -> None:
        self.raw, self._number = raw, raw.fileno()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self.raw.close()

    def __reduce__(self) -> Any:
        return _inherited, (reduction.DupFd(self.raw.fileno()),)

    def read(self, memory: memoryview, start: int) -> None:
        """Fill the memory with the bytes from `start` on, wherever the file stands: that place is shared."""
        while (count := self._read(memory, start)) < len(memory):
            if count == 0:
                raise OSError("the file of samples has become shorter")
            memory, start = memory[count:], start + count

    def _read(self, memory: memoryview, start: int) -> int:
        if _PREADV is not None:
            return int(_PREADV(self._number, (memory,), start))
        with self._lock:
            self.raw.seek(start)
            return int(self.raw.readinto(memory))

    def write(self, memory: memoryview, start: int) -> None:
        """Write these bytes from `start` on."""
        with self._lock:
            self.raw.seek(start)
            while memory:  # without a buffer a write may be of a part only
                memory = memory[self.raw.write(memory) :]


def _inherited(handle: Any) -> _File:
    """The file in a process that was given it."""
    return _File(os.fdopen(handle.detach(), "r+b", buffering=0))


class DiskTensor:
    """(N, …) values in a file of its own that nobody sees and that is gone when the process is.

    Rows are read when they are asked for, so that memory holds a batch and not the data. Reading is by position and not
    by mapping: pages of a mapped file count as the process's own until somebody else needs them.

    `positions` are the rows of the file this object stands for: taking some of them copies no sample.
    """

    def __init__(self, file: _File, sample: tuple[int, ...], dtype: torch.dtype, positions: Tensor) -> None:
        self._file, self._positions = file, positions
        self.shape = torch.Size((len(positions), *sample))
        self.dtype, self.device = dtype, torch.device("cpu")

    @classmethod
    def empty(cls, rows: int, sample: tuple[int, ...], dtype: torch.dtype, folder: Path) -> DiskTensor:
        """Room for so many rows, in a nameless file in that folder."""
        folder.mkdir(parents=True, exist_ok=True)
        file = _File(tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115 (closed below)
        file.raw.truncate(rows * math.prod(sample) * dtype.itemsize)
        return cls(file, sample, dtype, torch.arange(rows))

    def __reduce__(self) -> Any:
        return _arrived, (self._file, tuple(self.shape[1:]), self.dtype, self._positions.numpy(), str(self.device))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """Read rows; they arrive on the device."""
        return self.arrive(self.read(which))

    def read(self, which: slice | Tensor) -> Tensor:
        """Read rows into memory, pinned where they go on to a card, so that the copy need not be waited for."""
        give_memory_back()
        where = self._positions[which.cpu() if isinstance(which, Tensor) else which]
        pinned = self.device.type == "cuda"
        rows = torch.empty((len(where), *self.shape[1:]), dtype=self.dtype, pin_memory=pinned)
        if len(where):
            memory, size = _bytes(rows), self.row_bytes
            for first, last, position in _neighbours(where):  # those that lie side by side are read at once
                self._file.read(memory[first * size : last * size], position * size)
        return rows

    def arrive(self, rows: Tensor) -> Tensor:
        """Rows that were read, on the device."""
        return rows.to(self.device, non_blocking=True)

    def __setitem__(self, start: int, rows: Tensor) -> None:
        """Write rows from position `start` on."""
        self._file.write(_bytes(rows.contiguous()), start * self.row_bytes)

    def mapped(self) -> Tensor:
        """All rows of the file as a tensor in memory that processes share; what one of them changes is its own."""
        size = len(self) * self.row_bytes
        content = mmap.mmap(self._file.raw.fileno(), size, access=mmap.ACCESS_COPY)
        return torch.frombuffer(content, dtype=self.dtype).view(self.shape)

    def take(self, positions: Tensor) -> DiskTensor:
        """The rows at these positions, still on disk."""
        taken = DiskTensor(self._file, tuple(self.shape[1:]), self.dtype, self._positions[positions.cpu()])
        return taken.to(self.device)

    def to(self, device: torch.device | str) -> DiskTensor:
        """The same rows, to arrive on another device."""
        moved = DiskTensor(self._file, tuple(self.shape[1:]), self.dtype, self._positions)
        moved.device = torch.device(device)
        return moved


Samples = Tensor | DiskTensor


def chunk_size(sample: tuple[int, ...]) -> int:
    """How many samples of this shape are handled at a time."""
    return max(1, min(CHUNK, MOST_VALUES // max(1, math.prod(sample))))


def chunks(x: Samples) -> Iterator[Tensor]:
    """All samples in order, a few at a time; those on disk are read ahead."""
    size = chunk_size(tuple(x.shape[1:]))
    places = [slice(start, start + size) for start in range(0, len(x), size)]
    if isinstance(x, DiskTensor):
        with contextlib.closing(ahead(x.read, places)) as read:
            yield from map(x.arrive, read)
    else:
        yield from map(x.__getitem__, places)


@functools.cache
def give_memory_back() -> None:
    """Have the C library return large blocks to the system when they are freed, in whatever process streams samples.

    glibc keeps blocks of up to 32 MiB for later by default, and with tensors of that size, aligned as torch asks for,
    hardly ever finds a kept one that fits: a run over 300 MiB of samples was seen to grow by 1 GiB.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library: there it is as it is
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


_M_MMAP_THRESHOLD = -3  # of malloc.h


def _arrived(
    file: _File, sample: tuple[int, ...], dtype: torch.dtype, positions: NDArray[np.int64], device: str
) -> DiskTensor:
    """The rows in a process that was given their file."""
    return DiskTensor(file, sample, dtype, torch.from_numpy(positions)).to(device)


def _bytes(rows: Tensor) -> memoryview:
    """The memory of rows that are there."""
    return memoryview(rows.numpy().reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _neighbours(where: Tensor) -> Iterator[tuple[int, int, int]]:
    """Places `first` to `last` whose positions follow each other, and the first of these positions."""
    breaks = ((where[1:] - where[:-1]) != 1).nonzero()[:, 0] + 1
    ends = [*breaks.tolist(), len(where)]
    starts = [0, *ends[:-1]]
    yield from zip(starts, ends, where[starts].tolist(), strict=True)
