"""How a sample becomes numbers: fitted on training rows, kept as JSON beside the model, the same ever after."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.data.disk_tensor import DiskTensor, chunk_size, give_memory_back
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples


class Inputs(ABC):
    """One kind of sample: what it is read from, and how it is encoded."""

    kind: ClassVar[str]
    dtype: ClassVar[torch.dtype] = torch.float32
    columns: list[str]  # of a table, where samples come from one
    shape: tuple[int, ...]

    @abstractmethod
    def encode(self, items: Sequence[Any]) -> Iterator[Tensor | str]:
        """For each item its numbers, or the reason why there are none."""

    def named(self, name: str) -> str:
        """How a sample is named in a sentence: an image by its path, others may have nothing but a number."""
        return name if self.kind == "image" else f"sample {name}"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that is needed to do the same again."""

    @classmethod
    @abstractmethod
    def from_json(cls, about: dict[str, Any]) -> Inputs:
        """Do the same again."""


def fill(
    inputs: Inputs,
    items: Sequence[Any],
    names: Sequence[str],
    *,
    limit: int,
    folder: Path,
    skip: bool,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[Samples, list[int], list[str]]:
    """All items encoded: the samples, the positions of those that could be, and a sentence for each that could not.

    In memory where all samples together have no more than `limit` bytes, else in a file in the folder. Unless `skip`,
    the first item that cannot be encoded is an error.
    """
    in_memory = len(items) * math.prod(inputs.shape) * inputs.dtype.itemsize <= limit
    x: Samples
    if in_memory:
        x = torch.empty((len(items), *inputs.shape), dtype=inputs.dtype)
    else:
        give_memory_back()
        x = DiskTensor.empty(len(items), inputs.shape, inputs.dtype, folder)
    kept: list[int] = []
    failed: list[str] = []
    size = chunk_size(inputs.shape)
    if tell is not None:
        tell(0, len(items))
    for start in range(0, len(items), size):
        good = []
        for place, result in enumerate(inputs.encode(items[start : start + size]), start):
            if isinstance(result, str):
                failed.append(f"{inputs.named(names[place])} {result}")
                if not skip:
                    raise InputError(f"{failed[-1]}; repair it, or leave such samples out with --on-error skip")
            else:
                good.append(result)
                kept.append(place)
        if good:
            first = len(kept) - len(good)
            x[slice(first, len(kept)) if isinstance(x, torch.Tensor) else first] = torch.stack(good)  # type: ignore[index]
        if tell is not None:
            tell(min(start + size, len(items)), len(items))
    return (x[: len(kept)] if isinstance(x, torch.Tensor) else x.take(torch.arange(len(kept)))), kept, failed
