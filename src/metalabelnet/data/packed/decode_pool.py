"""Worker processes that decode the images of a pack.

A thread for each process sends it a few images at a time and copies the pixels into the batch, so that a batch is
decoded by all processes and its content does not depend on their number.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from metalabelnet.errors import InputError
from metalabelnet.input_files.decode_worker import HEADER, PIXELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

IMAGES_PER_REQUEST = 4
PIPE_BYTES = 1 << 20  # the most that Linux allows without privileges: a process need not wait until its images are read
_START = "import sys; sys.path[:] = {path!r}; from metalabelnet.input_files.decode_worker import main; main()"


class StoredImage(NamedTuple):
    """Where an image is: the path of its shard, its offset and size there, and its SHA-256 digest."""

    file: str
    offset: int
    size: int
    digest: str


class DecodeError(Exception):
    """An image that cannot be decoded: its position in the batch, the worker's status and its message."""

    def __init__(self, position: int, status: int, message: str) -> None:
        super().__init__(position, status, message)
        self.position, self.status, self.message = position, status, message


class DecodePool:
    """Processes that decode images, started when the first batch is read and ended with this object.

    Parameters
    ----------
    workers : int
        The number of processes.
    """

    def __init__(self, workers: int) -> None:
        self._processes = [_start_worker() for _ in range(workers)]
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        weakref.finalize(self, _end, self._processes, self._threads)

    def decode(self, images: Sequence[StoredImage], resize: int | None, out: NDArray[np.uint8]) -> None:
        """Decode the images into the array (N, channels, height, width). Raises DecodeError for the first failure."""
        parts = [
            self._threads.submit(_request, self._idle, start, images[start : start + IMAGES_PER_REQUEST], resize, out)
            for start in range(0, len(images), IMAGES_PER_REQUEST)
        ]
        failures = [part.exception() for part in parts]  # waits for all: they write to the array
        for failure in failures:
            if failure is not None:
                raise failure


def _request(
    idle: queue.SimpleQueue[subprocess.Popen[bytes]],
    start: int,
    images: Sequence[StoredImage],
    resize: int | None,
    out: NDArray[np.uint8],
) -> None:
    """Let an idle process decode images, the first of which is number `start` of the batch."""
    process = idle.get()
    try:
        failures = _exchange(process, start, images, resize, out)
    except OSError as error:  # it was killed; the next request that it gets reports it, too
        raise InputError(
            f"a process that decodes images ended (exit code {process.wait()}): use fewer with --workers if memory is "
            "short"
        ) from error
    finally:
        idle.put(process)
    if failures:
        raise failures[0]


def _exchange(
    process: subprocess.Popen[bytes],
    start: int,
    images: Sequence[StoredImage],
    resize: int | None,
    out: NDArray[np.uint8],
) -> list[DecodeError]:
    """Send a request, read its answers, and return what failed."""
    request = {"images": images, "shape": out.shape[1:], "resize": resize}
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None
    requests.write(json.dumps(request).encode() + b"\n")
    requests.flush()
    failures = []
    for position in range(start, start + len(images)):
        header = memoryview(bytearray(HEADER.size))
        _read_exactly(answers, header)
        status, size = HEADER.unpack(header)
        memory = memoryview(out[position]).cast("B") if status == PIXELS else memoryview(bytearray(size))
        _read_exactly(answers, memory)
        if status != PIXELS:
            failures.append(DecodeError(position, status, bytes(memory).decode()))
    return failures


def _read_exactly(file: IO[bytes], memory: memoryview) -> None:
    """Fill the memory from a pipe."""
    while memory:
        count: int = file.readinto(memory)  # type: ignore[attr-defined]
        if count == 0:
            raise BrokenPipeError
        memory = memory[count:]


def _start_worker() -> subprocess.Popen[bytes]:
    """Start a process. Unlike those of `multiprocessing`, it does not import the main module of the program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    if sys.platform == "linux":
        options["pipesize"] = PIPE_BYTES
    return subprocess.Popen([sys.executable, "-c", _START.format(path=sys.path)], **options)  # noqa: S603


def _end(processes: Sequence[subprocess.Popen[bytes]], threads: ThreadPoolExecutor) -> None:
    """Close the standard input of the processes, which ends them."""
    threads.shutdown(cancel_futures=True)
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not sent to a killed process is lost
                if pipe is not None:
                    pipe.close()
    for process in processes:
        process.wait()
