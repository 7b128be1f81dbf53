"""What the benchmarks of steps share: milliseconds and memory."""

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
    """For one call: the median of five repeats that take so many seconds, the device synchronised around each."""

    def repeat(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            step()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    repeat(1)
    count = max(2, int(seconds / 5 / max(1e-4, repeat(1))))
    return 1000 * statistics.median(repeat(count) for _ in range(5))


def resident() -> float:
    """The most MiB this process has held. `ru_maxrss` would start with what the parent held when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 2**10 for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def tidy() -> None:
    """Give back what nothing uses any more of the card's memory; the most that was taken is counted anew."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
