"""How much of the memory samples may take."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20


def room_for_samples(gib: float | None, card: int | None = None, runs: int = 1) -> int:
    """Bytes that samples may take in memory: as given, else half of what is free (4 GiB where nobody can tell).

    Samples in memory are moved to the card, where there is one: no more than half of what is free there. Where several
    runs go on at a time each has its own, and its share of the room.
    """
    if gib is not None:
        return int(gib * GIB)
    free = [4 * GIB]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError, StopIteration):  # Linux: what others hold for later counts as free
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])]
    with contextlib.suppress(OSError, ValueError):  # a container's own limit
        most, taken = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free.append(max(0, most - taken))
    return min([*free, *([] if card is None else [card])]) // 2 // runs
