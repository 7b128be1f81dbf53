"""Random streams, each named by what it is for.

A stream depends on the run's seed and its name alone, not on how much was drawn before it: step 7 of
epoch 3 draws the same numbers in a run that was never stopped and in one that was resumed there.
"""

from __future__ import annotations

import hashlib

import torch


def stream_seed(seed: int, *name: str | int) -> int:
    """The seed of the stream with that name: 63 bits of a hash over the run's seed and the name."""
    text = "/".join(map(str, (seed, *name)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *name: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator at the start of the stream with that name."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, *name))
