"""A cache of data sets for several runs: data that runs share is read and decoded once.

Large samples lie in an anonymous file that every run maps into memory, in whichever process it runs. They exist once
and disappear when the last process that has the file open ends. Processes inherit the file when they start.
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
from metalabelnet.data.disk_tensor import MIB, DiskTensor, chunk_size
from metalabelnet.data.rows import DataSet, Rows
from metalabelnet.data.streamed_tensor import StreamedTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.list_data import ReadOptions

MAX_PICKLED_BYTES = 16 * MIB  # of samples that are copied to another process without a file


class ReadCache:
    """Reads data like `load` and keeps the last data set: consecutive runs mostly read the same one.

    Parameters
    ----------
    concurrent_runs : int
        How many runs hold the samples at the same time.
    """

    def __init__(self, concurrent_runs: int = 1) -> None:
        self.concurrent_runs = concurrent_runs
        self._key: Any = None
        self._data: dict[str, Any] = {}
        self._computed: dict[Any, Any] = {}

    def load(
        self,
        name: str,
        folder: Path | None,
        on_download: ProgressCallback | None = None,
        *,
        read_options: ReadOptions,
        on_samples: ProgressCallback | None = None,
    ) -> DataSet:
        """Return the data set, read now or earlier.

        The free GPU memory is no part of the key: it decides where samples are stored, not what they are.
        """
        key = (name, folder, dataclasses.replace(read_options, gpu_free_bytes=None))
        if key != self._key:
            self._key, self._data, self._computed = None, {}, {}  # free the memory before reading
            options = dataclasses.replace(read_options, concurrent_runs=self.concurrent_runs)
            data = load(name, folder, on_download, read_options=options, on_samples=on_samples)
            self._data = {f.name: _pack(getattr(data, f.name), data_folder(folder)) for f in dataclasses.fields(data)}
            self._key = key
        return DataSet(**{name: _unpack(value) for name, value in self._data.items()})

    def get_or_compute(self, key: Any, compute: Callable[[], Tensor]) -> Tensor:
        """Return a tensor that depends on the current data, computed by the first run that needs it."""
        if key not in self._computed:
            self._computed[key] = compute().numpy()
        return torch.from_numpy(self._computed[key])

    def for_subprocess(self) -> ReadCache:
        """Return the cache for a process about to start: an empty one if large samples would have to be pickled."""
        large = any(isinstance(value, _PackedRows) and value.is_large for value in self._data.values())
        return ReadCache(self.concurrent_runs) if large or os.name != "posix" else self


@dataclasses.dataclass(frozen=True)
class _PackedRows:
    """Rows as they are cached and pickled: numpy arrays, and a file for large samples.

    Tensors are not pickled: torch would send them through shared memory, whose size is often limited.
    """

    fields: dict[str, Any]

    @property
    def is_large(self) -> bool:
        x = self.fields["x"]
        return not isinstance(x, StreamedTensor | _MappedSamples) and x.nbytes > MAX_PICKLED_BYTES


@dataclasses.dataclass(frozen=True)
class _MappedSamples:
    """Samples that fit in memory, in a file that processes map."""

    file: DiskTensor


def _pack(value: Any, folder: Path) -> Any:
    if isinstance(value, Rows):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _PackedRows({name: _pack(part, folder) for name, part in fields.items()})
    if not isinstance(value, Tensor):
        return value
    if value.nbytes > MAX_PICKLED_BYTES:
        with contextlib.suppress(OSError):  # the disk is full, or the folder is read-only
            return _MappedSamples(_write(value, folder))
    return value.numpy()


def _unpack(value: Any) -> Any:
    if isinstance(value, _PackedRows):
        return Rows(**{name: _unpack(part) for name, part in value.fields.items()})
    if isinstance(value, _MappedSamples):
        return value.file.memory_map()
    return torch.from_numpy(value) if hasattr(value, "__array__") else value


def _write(x: Tensor, folder: Path) -> DiskTensor:
    sample = tuple(x.shape[1:])
    written, size = DiskTensor.empty(len(x), sample, x.dtype, folder), chunk_size(sample)
    for start in range(0, len(x), size):
        written[start] = x[start : start + size]
    return written
