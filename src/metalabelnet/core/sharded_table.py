"""Tables with a row for each sample, such as label logits. Each rank stores its share of the rows.

    operation              what it does                                              what is sent
    `table[index]`         returns rows on every rank; each adds the rows it has     all-reduce of these rows
    `table[index] = rows`  each rank writes the rows it has                          nothing
    `table.gather()`       returns the whole table on rank 0, for a checkpoint       each row once, to rank 0
    `table.scatter(...)`   the inverse, for a checkpoint that rank 0 has read        each row once, from rank 0

The row numbers of a batch and the new values of its rows are replicated: they follow from the logits of the whole
batch, which every rank has. A process that trains alone has all rows; then a lookup is plain indexing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.core.ranks import current_world, own_span

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_VALUES_PER_MESSAGE = 1 << 20  # when a whole table is sent
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}  # of the same size


class ShardedTable:
    """A table with a row for each sample, of which this process stores `own_span(rows)`.

    Parameters
    ----------
    local : Tensor
        The own rows. Update it in place: a compiled step or CUDA graph keeps reading the same memory.
    rows : int
        The number of rows of the whole table.
    dim : int
        The dimension of `local` that counts rows. Looking up and writing rows needs 0.
    """

    def __init__(self, local: Tensor, rows: int, dim: int = 0) -> None:
        self.local, self.rows, self.dim = local, rows, dim
        self.world = current_world()

    @classmethod
    def full(cls, rows: int, classes: int, value: float, like: Tensor, dtype: torch.dtype) -> ShardedTable:
        """Return a table (rows, classes) of equal values, on the device of another tensor."""
        own = own_span(rows)
        return cls(torch.full((own.stop - own.start, classes), value, dtype=dtype, device=like.device), rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole table."""
        shape = self.local.shape
        return (*shape[: self.dim], self.rows, *shape[self.dim + 1 :])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.local.dtype

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return a copy of rows. All ranks call it with the same row numbers."""
        if self.world is None:
            return self.local[index]
        places, own = self._own_places(index)
        rows = self.local.new_zeros(len(index), *self.local.shape[1:])
        rows[places] = self.local[own]
        # One rank has the row and the others add zeros: as integers, because −0.0 + 0.0 has another sign than −0.0.
        (bits,) = self.world.all_reduce([rows.view(_INTEGERS[rows.dtype])])
        return bits.view(rows.dtype)

    def __setitem__(self, index: Tensor, values: Tensor) -> None:
        """Replace rows. All ranks pass the same values."""
        if self.world is None:
            self.local[index] = values
        else:
            places, own = self._own_places(index)
            self.local[own] = values[places]

    def add(self, index: Tensor, values: Tensor) -> None:
        """Add values to rows, each of which occurs once in the index. All ranks pass the same values."""
        if self.world is None:
            self.local[index] += values
        else:
            places, own = self._own_places(index)
            self.local[own] += values[places]

    def chunks(self) -> Iterator[Tensor]:
        """Yield the numbers of all rows, as many at a time as are looked up in one message."""
        for start, end in self._pieces(0, self.rows):
            yield torch.arange(start, end, device=self.local.device)

    def state(self) -> Tensor | ShardedTable:
        """Return the table for a state dict: the tensor if this process has all rows, else the table itself.

        `gather` makes a tensor of it when a checkpoint is written.
        """
        return self.local if self.world is None else self

    def load(self, whole: Tensor) -> None:
        """Copy the own rows of a whole table. A meta tensor has no values: they follow by `scatter`."""
        if not whole.is_meta:
            start, end = self._span()
            self.local.copy_(whole.narrow(self.dim, start, end - start))

    def gather(self) -> Tensor | None:
        """Return the whole table on rank 0, in the memory of the host; None on the other ranks."""
        assert self.world is not None
        if self.world.rank:
            for start, end in self._pieces(*self._span()):
                self.world.send(self._own_rows(start, end).contiguous(), to=0)
            return None
        whole = torch.empty(self.shape, dtype=self.dtype)
        for rank in range(self.world.size):
            for start, end in self._pieces(*self._span(rank)):
                rows = self._own_rows(start, end) if rank == 0 else self._receive(start, end, rank)
                whole.narrow(self.dim, start, end - start).copy_(rows)
        return whole

    def scatter(self, whole: Tensor | None) -> None:
        """Copy to each rank its rows of the table that rank 0 passes. Rank 0 has its own already."""
        assert self.world is not None
        if self.world.rank:
            for start, end in self._pieces(*self._span()):
                self._own_rows(start, end).copy_(self._receive(start, end, 0))
            return
        assert whole is not None
        for rank in range(1, self.world.size):
            for start, end in self._pieces(*self._span(rank)):
                rows = whole.narrow(self.dim, start, end - start).to(self.local.device)
                self.world.send(rows.contiguous(), to=rank)

    def _span(self, rank: int | None = None) -> tuple[int, int]:
        return (0, self.rows) if self.world is None else self.world.span(self.rows, rank)

    def _own_places(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of the own rows in an index, and the places of these rows in `local`."""
        start, end = self._span()
        places = ((index >= start) & (index < end)).nonzero()[:, 0]
        return places, index[places] - start

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of consecutive pieces of the rows from `start` to `end`."""
        size = max(1, MAX_VALUES_PER_MESSAGE * self.rows // max(1, math.prod(self.shape)))
        yield from ((first, min(first + size, end)) for first in range(start, end, size))

    def _own_rows(self, start: int, end: int) -> Tensor:
        return self.local.narrow(self.dim, start - self._span()[0], end - start)

    def _receive(self, start: int, end: int, rank: int) -> Tensor:
        assert self.world is not None
        shape = (*self.shape[: self.dim], end - start, *self.shape[self.dim + 1 :])
        return self.world.receive(self.local.new_empty(shape), source=rank)
