"""One reading for several runs: what the runs of a comparison read is read and decoded once.

What is large lies in a file without a name that every run maps into its memory, in whatever process it is: it is there
once, and gone with the last process that has it open, however that one ends. Processes are given it when they start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.data import load
from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.disk_tensor import DiskTensor, chunk_size
from metalabelnet.data.memory_limit import MIB
from metalabelnet.data.rows import DataSet, Rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import Progress
    from metalabelnet.data.files.reader import ReadOptions

SMALL = 16 * MIB  # samples that go to another process as a copy, without a file


class ReadCache:
    """Reads like `load`, and keeps what it has read last: runs one after the other mostly ask for the same again.

    at_a_time  how many runs will hold the samples at the same time
    """

    def __init__(self, at_a_time: int = 1) -> None:
        self.at_a_time = at_a_time
        self._asked: Any = None
        self._kept: dict[str, Any] = {}
        self._found: dict[Any, Any] = {}

    def load(
        self,
        name: str,
        folder: Path | None,
        progress: Progress | None = None,
        *,
        read_options: ReadOptions,
        on_samples: Progress | None = None,
    ) -> DataSet:
        """The data set, read now or before. What is free on a card decides where samples are put, not what they are."""
        asked = (name, folder, dataclasses.replace(read_options, card=None))
        if asked != self._asked:
            self._asked, self._kept, self._found = None, {}, {}  # room for what comes
            how = dataclasses.replace(read_options, runs=self.at_a_time)
            data = load(name, folder, progress, read_options=how, on_samples=on_samples)
            self._kept = {f.name: _kept(getattr(data, f.name), data_folder(folder)) for f in dataclasses.fields(data)}
            self._asked = asked
        return DataSet(**{name: _given(value) for name, value in self._kept.items()})

    def once(self, what: Any, find: Callable[[], Tensor]) -> Tensor:
        """What runs find out about the data they have read, found by the first that asks for it."""
        if what not in self._found:
            self._found[what] = find().numpy()
        return torch.from_numpy(self._found[what])

    def to_send(self) -> ReadCache:
        """These readings for a process that is to be started: without what can only be copied and is large."""
        heavy = any(isinstance(value, _Kept) and value.heavy for value in self._kept.values())
        return ReadCache(self.at_a_time) if heavy or os.name != "posix" else self


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Rows as they are kept and sent: arrays, and a file for samples that are many.

    Tensors would not do: torch sends them to another process by way of its own shared memory, which is often small.
    """

    fields: dict[str, Any]

    @property
    def heavy(self) -> bool:
        x = self.fields["x"]
        return not isinstance(x, DiskTensor | _Mapped) and x.nbytes > SMALL


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """Samples that memory has room for, in a file."""

    file: DiskTensor


def _kept(value: Any, folder: Path) -> Any:
    if isinstance(value, Rows):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _Kept({name: _kept(part, folder) for name, part in fields.items()})
    if not isinstance(value, Tensor):
        return value
    if value.nbytes > SMALL:
        with contextlib.suppress(OSError):  # no room on the disk, or a folder that cannot be written to
            return _Mapped(_written(value, folder))
    return value.numpy()


def _given(value: Any) -> Any:
    if isinstance(value, _Kept):
        return Rows(**{name: _given(part) for name, part in value.fields.items()})
    if isinstance(value, _Mapped):
        return value.file.mapped()
    return torch.from_numpy(value) if hasattr(value, "__array__") else value


def _written(x: Tensor, folder: Path) -> DiskTensor:
    sample = tuple(x.shape[1:])
    stored, size = DiskTensor.empty(len(x), sample, x.dtype, folder), chunk_size(sample)
    for start in range(0, len(x), size):
        stored[start] = x[start : start + size]
    return stored
