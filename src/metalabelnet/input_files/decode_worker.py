"""A process that reads images from the shards of a pack, checks their digests and decodes them.

It is started by `data/packed/decode_pool.py` and imports neither PyTorch nor the program that uses the package.
Requests are lines of JSON on standard input; the answer to each image is a status byte, the length and the content:
pixels, or a message. It ends with its standard input, so that none stays when the training process is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import sys
import warnings
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

from metalabelnet.input_files.image_decoding import decode_image
from metalabelnet.input_files.image_files import describe_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER = struct.Struct("<BQ")  # status, length of the content
PIXELS, DAMAGED, FAILED = range(3)  # status: decoded, another digest than in the index, not decoded
MAX_OPEN_SHARDS = 64


def read_stored(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes of a shard, or fewer at its end. The file position, which threads share, is not used."""
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_stored(
    descriptor: int, offset: int, size: int, digest: str, shape: tuple[int, ...], resize: int | None
) -> tuple[int, bytes | NDArray[np.uint8]]:
    """Return the status and the pixels of an image in a shard, or a message."""
    content = read_stored(descriptor, offset, size)
    if hashlib.sha256(content).hexdigest() != digest:
        return DAMAGED, b""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual files that can be decoded; they were checked when packed
            return PIXELS, decode_image(content, shape, resize)
    except Exception as error:  # Pillow raises many types for broken files, SyntaxError among them
        return FAILED, describe_error(error).encode()


def main() -> None:
    """Answer requests until standard input is closed."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to the process group: the training process decides when to end
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    _answer(sys.stdin.buffer, sys.stdout.buffer)


def _answer(requests: IO[bytes], answers: IO[bytes]) -> None:
    open_shard = lru_cache(MAX_OPEN_SHARDS)(_OpenShard)
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        for file, offset, size, digest in request["images"]:
            try:
                descriptor = open_shard(file).descriptor
                status, content = decode_stored(
                    descriptor, offset, size, digest, tuple(request["shape"]), request["resize"]
                )
            except OSError as error:
                status, content = FAILED, f"cannot be read ({error.strerror})".encode()
            payload = memoryview(content).cast("B")  # type: ignore[arg-type]
            answers.write(HEADER.pack(status, len(payload)))
            answers.write(payload)
        answers.flush()


class _OpenShard:
    """An open shard, closed when it leaves the cache."""

    def __init__(self, file: str) -> None:
        self.descriptor = os.open(file, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


if __name__ == "__main__":
    main()
