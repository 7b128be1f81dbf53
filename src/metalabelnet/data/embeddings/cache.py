"""Embeddings in a file, so that each is computed once.

There is one file for each encoder, in `embeddings` of the data folder ($METALABELNET_DATA, else ~/.cache/metalabelnet).
Its name is the digest of the encoder's weights and of how samples are prepared. A record is the digest of a sample's
content (16 bytes) and its embedding (float32). Records are appended, so that a computation that was stopped continues.
The files can be deleted at any time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

FOLDER = "embeddings"
DIGEST_BYTES = 16


class EmbeddingCache:
    """The embeddings of one encoder.

    Parameters
    ----------
    folder : Path
        The data folder.
    identity : str
        Digest of the encoder.
    width : int
        Length of an embedding.

    Attributes
    ----------
    problem : str
        Why embeddings are not stored; "" if they are.
    """

    def __init__(self, folder: Path, identity: str, width: int) -> None:
        self.path, self.problem = folder / FOLDER / f"{identity}.f32", ""
        self._record = np.dtype([("digest", f"V{DIGEST_BYTES}"), ("vector", "<f4", (width,))])
        self._positions: dict[bytes, int] = {}
        try:
            self._read_digests()
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"

    def get(self, digest: bytes) -> Tensor | None:
        """Return the embedding of the sample with this digest, if it is stored."""
        position = self._positions.get(digest)
        if position is None:
            return None
        with contextlib.suppress(OSError):
            record = np.fromfile(self.path, self._record, 1, offset=position * self._record.itemsize)
            if len(record) and record["digest"][0].tobytes() == digest:
                return torch.from_numpy(record["vector"][0].astype(np.float32))
        return None  # the file was deleted or changed

    def add(self, digests: Sequence[bytes], vectors: Tensor) -> None:
        """Store the embeddings of new samples. A failure, such as a full disk, ends storing."""
        if self.problem or not digests:
            return
        records = np.empty(len(digests), self._record)
        records["digest"] = np.frombuffer(b"".join(digests), f"V{DIGEST_BYTES}")
        records["vector"] = vectors.numpy()
        try:
            first = self._append(records)
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"
        else:
            self._positions |= {digest: first + k for k, digest in enumerate(digests)}

    def _append(self, records: np.ndarray) -> int:
        """Write the records behind the last complete one; return the position of the first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file, _locked(file.fileno()):
            size = self.path.stat().st_size
            first = size // self._record.itemsize
            if size % self._record.itemsize:  # a process was killed while it wrote
                file.truncate(first * self._record.itemsize)
            file.write(records.tobytes())
        return first

    def _read_digests(self) -> None:
        if not self.path.exists():
            return
        count = self.path.stat().st_size // self._record.itemsize
        if count:
            records = np.memmap(self.path, self._record, "r", shape=(count,))
            content = np.ascontiguousarray(records["digest"]).tobytes()
            self._positions = {content[k * DIGEST_BYTES : (k + 1) * DIGEST_BYTES]: k for k in range(count)}


@contextlib.contextmanager
def _locked(handle: int) -> Iterator[None]:
    """Wait for other processes that append to the file."""
    try:
        import fcntl
    except ImportError:  # not POSIX: no lock
        yield
        return
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    yield
