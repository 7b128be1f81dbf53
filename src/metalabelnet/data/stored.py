"""Samples on disk: like a tensor to whoever takes rows out of it, and never in memory as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import math
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 1024
MOST_VALUES = 1 << 22  # in a chunk: large images go through a network in smaller ones


class _File:
    """A file without a name, closed when the last that reads it has gone."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __del__(self) -> None:
        self.raw.close()


class Stored:
    """(N, …) values in a file of its own that nobody sees and that is gone when the process is.

    Rows are read when they are asked for, so that memory holds a batch and not the data. Reading is by seek and not by
    mapping: pages of a mapped file count as the process's own until somebody else needs them.

    `positions` are the rows of the file this object stands for: taking some of them copies no sample.
    """

    def __init__(self, file: _File, sample: tuple[int, ...], dtype: torch.dtype, positions: Tensor) -> None:
        self._file, self._positions = file, positions
        self.shape = torch.Size((len(positions), *sample))
        self.dtype, self.device = dtype, torch.device("cpu")

    @classmethod
    def empty(cls, rows: int, sample: tuple[int, ...], dtype: torch.dtype, folder: Path) -> Stored:
        """Room for so many rows, in a nameless file in that folder."""
        _give_memory_back()
        folder.mkdir(parents=True, exist_ok=True)
        file = _File(tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115 (closed below)
        file.raw.truncate(rows * math.prod(sample) * dtype.itemsize)
        return cls(file, sample, dtype, torch.arange(rows))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """Read rows; they arrive on the device."""
        where = self._positions[which.cpu() if isinstance(which, Tensor) else which]
        rows = torch.empty((len(where), *self.shape[1:]), dtype=self.dtype)
        for row, position in zip(_bytes(rows), where.tolist(), strict=True):
            self._file.raw.seek(position * row.nbytes)
            self._file.raw.readinto(row)
        return rows.to(self.device)

    def __setitem__(self, start: int, rows: Tensor) -> None:
        """Write rows from position `start` on."""
        content: Any = memoryview(rows.contiguous().numpy()).cast("B")  # type: ignore[arg-type]
        self._file.raw.seek(start * (content.nbytes // len(rows)))
        while content:  # without a buffer a write may be of a part only
            content = content[self._file.raw.write(content) :]

    def take(self, positions: Tensor) -> Stored:
        """The rows at these positions, still on disk."""
        taken = Stored(self._file, tuple(self.shape[1:]), self.dtype, self._positions[positions.cpu()])
        return taken.to(self.device)

    def to(self, device: torch.device | str) -> Stored:
        """The same rows, to arrive on another device."""
        moved = Stored(self._file, tuple(self.shape[1:]), self.dtype, self._positions)
        moved.device = torch.device(device)
        return moved


Samples = Tensor | Stored


def chunk_size(sample: tuple[int, ...], most: int = CHUNK) -> int:
    """How many samples of this shape are handled at a time."""
    return max(1, min(most, MOST_VALUES // max(1, math.prod(sample))))


def chunks(x: Samples, size: int = CHUNK) -> Iterator[Tensor]:
    """All samples in order, a few at a time."""
    size = chunk_size(tuple(x.shape[1:]), size)
    for start in range(0, len(x), size):
        yield x[start : start + size]


def _give_memory_back() -> None:
    """Have the C library return large blocks to the system when they are freed, in whatever process streams samples.

    glibc keeps blocks of up to 32 MiB for later by default, and with tensors of that size, aligned as torch asks for,
    hardly ever finds a kept one that fits: a run over 300 MiB of samples was seen to grow by 1 GiB.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library: there it is as it is
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


_M_MMAP_THRESHOLD = -3  # of malloc.h


def _bytes(rows: Tensor) -> list[Any]:
    """The memory of each row."""
    array = rows.numpy().reshape(len(rows), -1).view(np.uint8)
    return [memoryview(row) for row in array]  # type: ignore[arg-type]
