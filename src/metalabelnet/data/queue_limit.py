"""A limit of how far the host queues work on a GPU ahead of it."""

from __future__ import annotations

from collections import deque

import torch

MAX_QUEUED = 4  # batches


class QueueLimit:
    """Lets the host queue the work of a few batches on a GPU, and then waits for the oldest of them.

    Without a limit the host would read batch after batch while the GPU computes: the pinned memory of a batch is used
    again only after its copy to the GPU. While it waits, a thread takes no time of the cores that decode images.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queued: deque[torch.cuda.Event] = deque()

    def add(self) -> None:
        """Note the work queued so far as that of one more batch, and wait until the number of batches is allowed."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append(event)
        if len(self._queued) > MAX_QUEUED:
            self._queued.popleft().synchronize()
