"""Time and memory of a function, for the benchmarks of training steps."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def milliseconds(step: Callable[[], object], *, cuda: bool, seconds: float) -> float:
    """Return the time of one call: the median of five repeats, which take `seconds` in total.

    The device is synchronized after each repeat.
    """

    def repeat(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    repeat(1)
    count = max(2, int(seconds / 5 / max(1e-4, repeat(1))))
    return 1000 * statistics.median(repeat(count) for _ in range(5))


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process in MiB. `ru_maxrss` would include that of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 2**10 for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def free_gpu_memory() -> None:
    """Return unused memory to the GPU and reset the peak memory statistics."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
