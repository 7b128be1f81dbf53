"""Messages between runs on a Ray cluster and the command that started them.

The mailbox is an actor in a process of its own. This module does not import PyTorch, so that it starts quickly.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalabelnet.launch.worker import ProgressMessage
    from metalabelnet.train.result import Progress

STOP_CHECK_SECONDS = 1.0  # between two questions of a run whether to stop


class Mailbox:
    """Progress of the runs that was not collected yet, and whether they must stop."""

    def __init__(self) -> None:
        self._messages: list[ProgressMessage] = []
        self._stop = False

    def post(self, messages: list[ProgressMessage]) -> bool:
        """Add messages of a run; return whether it must stop."""
        self._messages += messages
        return self._stop

    def collect(self, stop: bool) -> list[ProgressMessage]:  # noqa: FBT001 (Ray passes arguments on by position)
        """Return the messages since the last call, and keep whether all runs must stop."""
        messages, self._messages, self._stop = self._messages, [], stop
        return messages


class Sender:
    """The connection of a run to the mailbox."""

    def __init__(self, ray: Any, mailbox: Any) -> None:
        self._ray, self._mailbox = ray, mailbox
        self._must_stop, self._next_question = False, 0.0

    def report(self, number: int, progress: Progress | None) -> None:
        """Send progress once per epoch, and None when the run starts and ends."""
        if progress is None or progress.metrics is not None:
            self._send([(number, progress)])

    def stop(self) -> bool:
        """Return whether the run must save a checkpoint and stop."""
        if time.monotonic() >= self._next_question:
            self._send([])
        return self._must_stop

    def _send(self, messages: list[ProgressMessage]) -> None:
        self._must_stop = self._ray.get(self._mailbox.post.remote(messages))
        self._next_question = time.monotonic() + STOP_CHECK_SECONDS
