"""A limit of how far the host queues work on a GPU ahead of it."""

from __future__ import annotations

from collections import deque

import torch

MAX_QUEUED = 4  # batches
MAX_QUEUED_BYTES = 1 << 28  # of samples in them


class QueueLimit:
    """Lets the host queue the work of a few batches on a GPU, and then waits for the oldest of them.

    Without a limit the host would read batch after batch while the GPU computes: the pinned memory of a batch is used
    again only after its copy to the GPU. While it waits, a thread takes no time of the cores that decode images. One
    batch is queued whatever its size, so that the GPU has work while the next one is prepared.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queued: deque[tuple[torch.cuda.Event, int]] = deque()

    def add(self, size: int) -> None:
        """Note the work queued so far as that of one more batch of `size` bytes, and wait while a limit is exceeded."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append((event, size))
        while len(self._queued) > 1 and (len(self._queued) > MAX_QUEUED or self._bytes() > MAX_QUEUED_BYTES):
            self._queued.popleft()[0].synchronize()

    def _bytes(self) -> int:
        return sum(size for _, size in self._queued)
