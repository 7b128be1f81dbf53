"""Reading ahead: while a batch is worked on, a thread reads the next ones."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

AHEAD = 2  # one that waits and one that is being read: more would take memory and save nothing

Place = TypeVar("Place")
Read = TypeVar("Read")


def ahead(read: Callable[[Place], Read], places: Iterable[Place], most: int = AHEAD) -> Generator[Read, None, None]:
    """What is read at each place, in order, at most so many before they are asked for.

    An error of the thread is raised where the result is asked for. The thread is gone when the generator is exhausted
    or closed, whatever for; what was read in vain by then is forgotten.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="reading ahead")
    waiting: deque[Future[Read]] = deque()
    try:
        for place in places:
            waiting.append(pool.submit(read, place))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
