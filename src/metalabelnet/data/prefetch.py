"""Prefetching: a thread reads the next batches while the current one is processed."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

PREFETCH_DEPTH = 2  # results: one ready and one being read. More takes memory and saves no time

Key = TypeVar("Key")
Result = TypeVar("Result")


def prefetch(
    read: Callable[[Key], Result], keys: Iterable[Key], depth: int = PREFETCH_DEPTH
) -> Generator[Result, None, None]:
    """Yield `read(key)` for each key, in order, computed in a thread at most `depth` results ahead.

    An exception in the thread is raised where its result is consumed. The thread ends when the generator is exhausted
    or closed; results read by then and not consumed are discarded.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    pending: deque[Future[Result]] = deque()
    try:
        for key in keys:
            pending.append(pool.submit(read, key))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
