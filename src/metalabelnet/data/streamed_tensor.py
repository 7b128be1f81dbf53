"""The base class of samples that are read on demand: memory holds a few batches and not the data."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

_M_MMAP_THRESHOLD = -3  # of malloc.h
_MMAP_THRESHOLD_BYTES = 1 << 20


class StreamedTensor(ABC):
    """(N, …) values that are read like a tensor, a batch at a time, and moved to a device.

    Parameters
    ----------
    sample : tuple of int
        Shape of one sample.
    dtype : torch.dtype
        Type of the values.
    positions : Tensor
        The stored samples that this object represents: `take` copies no sample.
    """

    read_threads: ClassVar[int] = 1  # that read batches ahead of the one in use

    def __init__(self, sample: tuple[int, ...], dtype: torch.dtype, positions: Tensor) -> None:
        self._positions = positions
        self.shape = torch.Size((len(positions), *sample))
        self.dtype, self.device = dtype, torch.device("cpu")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
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
        """Whether the values are floating-point numbers."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """Read rows and move them to the device."""
        return self.to_device(self.read(which))

    def read(self, which: slice | Tensor) -> Tensor:
        """Read rows into host memory, pinned if the device is a GPU, so that the copy to it is asynchronous."""
        return_freed_memory()
        where = self._positions[which.cpu() if isinstance(which, Tensor) else which]
        pinned = self.device.type == "cuda"
        rows = torch.empty((len(where), *self.shape[1:]), dtype=self.dtype, pin_memory=pinned)
        if len(where):
            self._fill(rows, where)
        return rows

    @abstractmethod
    def _fill(self, rows: Tensor, where: Tensor) -> None:
        """Read the stored samples at these positions into the rows. Several threads may call it at the same time."""

    def to_device(self, rows: Tensor) -> Tensor:
        """Move rows that were read to the device."""
        return rows.to(self.device, non_blocking=True)

    def take(self, positions: Tensor) -> Self:
        """Return the rows at these positions, which are not read."""
        return self._copy(self._positions[positions.cpu()], self.device)

    def to(self, device: torch.device | str) -> Self:
        """Return the same rows, to be read onto another device."""
        return self._copy(self._positions, torch.device(device))

    def _copy(self, positions: Tensor, device: torch.device) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._positions, copy.device = positions, device
        copy.shape = torch.Size((len(positions), *self.shape[1:]))
        return copy


@functools.cache
def return_freed_memory() -> None:
    """Make the C library return large freed blocks to the system, in processes that stream samples.

    By default glibc keeps blocks of up to 32 MiB. It rarely reuses them for tensors with the alignment that torch
    requests: a run over 300 MiB of samples grew by 1 GiB.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
