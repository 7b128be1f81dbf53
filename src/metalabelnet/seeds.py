"""Named random streams.

A stream depends only on the run's seed and its name, not on what was drawn before. Step 7 of epoch 3 therefore draws
the same numbers in an uninterrupted run and in a resumed one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def stream_seed(seed: int, *name: str | int) -> int:
    """Return the seed of a named stream: 63 bits of SHA-256 over the run's seed and the name.

    Examples
    --------
    >>> from metalabelnet.seeds import stream_seed
    >>> stream_seed(0, "net", 0) == stream_seed(0, "net", 0)
    True
    >>> stream_seed(0, "net", 0) == stream_seed(0, "net", 1)
    False
    """
    text = "/".join(map(str, (seed, *name)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *name: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator at the start of a named stream."""
    import torch  # here, because it takes seconds, and commands that draw nothing do without it

    return torch.Generator(device=device).manual_seed(stream_seed(seed, *name))
