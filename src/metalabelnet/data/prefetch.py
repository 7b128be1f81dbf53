"""Prefetching: threads read the next batches while the current one is processed."""

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
    read: Callable[[Key], Result], keys: Iterable[Key], depth: int = PREFETCH_DEPTH, threads: int = 1
) -> Generator[Result, None, None]:
    """Yield `read(key)` for each key, in order, computed in threads, `depth` results or one per thread ahead.

    An exception in a thread is raised where its result is consumed. The threads end when the generator is exhausted
    or closed; results read by then and not consumed are discarded.
    """
    depth = max(depth, threads)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch")
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
