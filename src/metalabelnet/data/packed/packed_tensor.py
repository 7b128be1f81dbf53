"""Images of a pack that are read like a tensor: from the shards, decoded by worker processes if they are files."""

from __future__ import annotations

import hashlib
import os
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.packed.decode_pool import DecodeError, DecodePool, StoredImage
from metalabelnet.data.packed.index import PIXELS, damaged_shard_error, read_ids, read_index, read_table, shard_name
from metalabelnet.data.streamed_tensor import StreamedTensor
from metalabelnet.errors import InputError
from metalabelnet.input_files import decode_worker
from metalabelnet.input_files.decode_worker import DAMAGED, decode_stored, read_stored

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

MAX_DEFAULT_WORKERS = 16


def default_workers(concurrent_runs: int = 1) -> int:
    """Return how many processes decode the images of a run by default: its share of the CPU cores, from 1 to 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // concurrent_runs, MAX_DEFAULT_WORKERS))


class Pack:
    """An open pack: its index, its shards, and the processes that decode its images.

    Parameters
    ----------
    folder : Path
        The folder.
    workers : int or None
        The number of processes that decode image files; 0: they are decoded in this process. Default: one per CPU
        core, at most 16.
    """

    def __init__(self, folder: Path, workers: int | None = None) -> None:
        self.folder, self.workers = folder, workers
        self.index = read_index(folder)
        self.table = read_table(folder, self.index)
        self.ids = read_ids(folder, self.index, len(self.table["part"]))
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}

    def __reduce__(self) -> Any:
        return Pack, (self.folder, self.workers)

    def __del__(self) -> None:
        for descriptor in getattr(self, "_descriptors", {}).values():
            os.close(descriptor)

    def stored(self, position: int) -> StoredImage:
        """Return where an image is."""
        table = self.table
        file = self.folder / shard_name(int(table["shard"][position]))
        offset, size = int(table["offset"][position]), int(table["size"][position])
        return StoredImage(os.fspath(file), offset, size, table["sha256"][position].tobytes().hex())

    def descriptor(self, position: int) -> int:
        """Return the open shard of an image."""
        number = int(self.table["shard"][position])
        with self._lock:
            if number not in self._descriptors:
                self._descriptors[number] = os.open(self.folder / shard_name(number), os.O_RDONLY)
            return self._descriptors[number]

    def pool(self) -> DecodePool | None:
        """Return the processes that decode images, started by the first call; None: there are none."""
        with self._lock:
            return self._pool

    @cached_property
    def _pool(self) -> DecodePool | None:
        workers = default_workers() if self.workers is None else self.workers
        return DecodePool(workers) if workers else None

    def error(self, position: int, status: int, message: str) -> InputError:
        """Return the error for an image that cannot be used."""
        if status == DAMAGED:
            return damaged_shard_error(Path(self.stored(position).file))
        return InputError(f"{self.folder}: {self.ids[position]} {message}; pack the images again")


class PackedTensor(StreamedTensor):
    """(N, channels, height, width) uint8 images of a pack.

    Parameters
    ----------
    pack : Pack
        The pack.
    shape : tuple of int
        Shape of a decoded image.
    resize : int or None
        Side of the square that is resized to and then cropped; None: no crop.
    positions : Tensor
        The images of the pack.
    """

    read_threads = 4

    def __init__(self, pack: Pack, shape: tuple[int, ...], resize: int | None, positions: Tensor) -> None:
        super().__init__(shape, torch.uint8, positions)
        self.pack, self._resize = pack, resize

    def __reduce__(self) -> Any:
        shape, positions = tuple(self.shape[1:]), self._positions.numpy()
        return _unpickle, (self.pack, shape, self._resize, positions, str(self.device))

    def concat(self, other: PackedTensor) -> PackedTensor:
        """Return these images followed by others of the same pack."""
        return self._copy(torch.cat([self._positions, other._positions]), self.device)

    def is_same_pack(self, other: object) -> bool:
        """Whether the other images are of the same pack, in the same shape."""
        return isinstance(other, PackedTensor) and other.pack is self.pack and other.shape[1:] == self.shape[1:]

    def digests(self) -> list[bytes]:
        """Return the SHA-256 digest of each image as it is stored."""
        return [row.tobytes() for row in self.pack.table["sha256"][self._positions.numpy()]]

    def _fill(self, rows: Tensor, where: Tensor) -> None:
        out, positions = rows.numpy(), where.tolist()
        if self.pack.index.store == PIXELS:
            for row, position in zip(out, positions, strict=True):
                self._read_pixels(row, position)
        elif (pool := self.pack.pool()) is None:
            for row, position in zip(out, positions, strict=True):
                self._decode(row, position)
        else:
            try:
                pool.decode([self.pack.stored(position) for position in positions], self._resize, out)
            except DecodeError as error:
                raise self.pack.error(positions[error.position], error.status, error.message) from error

    def _read_pixels(self, row: NDArray[np.uint8], position: int) -> None:
        image = self.pack.stored(position)
        content = read_stored(self.pack.descriptor(position), image.offset, image.size)
        if hashlib.sha256(content).hexdigest() != image.digest or len(content) != row.nbytes:
            raise self.pack.error(position, DAMAGED, "")
        memoryview(row).cast("B")[:] = content  # type: ignore[arg-type]

    def _decode(self, row: NDArray[np.uint8], position: int) -> None:
        _, offset, size, digest = self.pack.stored(position)
        descriptor = self.pack.descriptor(position)
        status, content = decode_stored(descriptor, offset, size, digest, row.shape, self._resize)
        if isinstance(content, bytes):
            raise self.pack.error(position, status, content.decode())
        assert status == decode_worker.PIXELS
        row[:] = content


def _unpickle(
    pack: Pack, shape: tuple[int, ...], resize: int | None, positions: NDArray[np.int64], device: str
) -> PackedTensor:
    return PackedTensor(pack, shape, resize, torch.from_numpy(positions)).to(device)
