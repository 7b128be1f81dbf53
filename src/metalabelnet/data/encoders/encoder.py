"""The base class of encoders, and encoding of all samples of a data set into memory or onto disk."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.data.disk_tensor import DiskTensor, chunk_size
from metalabelnet.data.streamed_tensor import return_freed_memory
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.sparse_tensor import SparseTensor


class Encoder(ABC):
    """Turns one kind of sample into tensors. Fitted on training samples and stored as JSON beside the model.

    Attributes
    ----------
    kind : str
        `image`, `table` or `text`.
    dtype : torch.dtype
        Type of an encoded sample.
    shape : tuple of int
        Shape of an encoded sample.
    columns : list of str
        The table columns that a sample is made of; empty if samples do not come from a table.
    sparse : bool
        Whether `encode_all` keeps samples in a sparse matrix (`encode_sparse`).
    chunk_samples : int or None
        How many samples `encode_all` encodes between reports of progress. Default: by their size.
    """

    kind: ClassVar[str]
    dtype: ClassVar[torch.dtype] = torch.float32
    columns: list[str]
    shape: tuple[int, ...]
    sparse: bool = False
    chunk_samples: int | None = None

    @abstractmethod
    def encode(self, items: Sequence[Any]) -> Iterator[Tensor | str]:
        """Yield the tensor of each item, or a phrase with the reason why it cannot be encoded."""

    def encode_sparse(self, items: Sequence[Any]) -> SparseTensor:
        """Return all items as a sparse matrix, for encoders that are `sparse`."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Return messages for the user, after samples were encoded."""
        return []

    def describe_sample(self, name: str) -> str:
        """Return how a message names a sample: an image by its path, others as `sample NAME`."""
        return name if self.kind == "image" else f"sample {name}"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the configuration from which `from_json` restores the encoder."""

    @classmethod
    @abstractmethod
    def from_json(cls, config: dict[str, Any]) -> Encoder:
        """Restore the encoder from its configuration."""


def encode_all(
    encoder: Encoder,
    items: Sequence[Any],
    names: Sequence[str],
    *,
    memory_bytes: int,
    folder: Path,
    skip_errors: bool,
    on_samples: Callable[[int, int], None] | None = None,
) -> tuple[Samples, list[int], list[str]]:
    """Encode all items. Return the samples, the positions of the encoded items, and a message for each failure.

    The samples are in memory if they take at most `memory_bytes`, else in a file in the folder. Unless `skip_errors`,
    the first item that cannot be encoded raises InputError. `on_samples` is called with the number of items done and
    the number in all.
    """
    if encoder.sparse:
        return encoder.encode_sparse(items), list(range(len(items))), []
    in_memory = len(items) * math.prod(encoder.shape) * encoder.dtype.itemsize <= memory_bytes
    x: Samples
    if in_memory:
        x = torch.empty((len(items), *encoder.shape), dtype=encoder.dtype)
    else:
        return_freed_memory()
        x = DiskTensor.empty(len(items), encoder.shape, encoder.dtype, folder)
    encoded_positions: list[int] = []
    failures: list[str] = []
    size = encoder.chunk_samples or chunk_size(encoder.shape)
    if on_samples is not None:
        on_samples(0, len(items))
    for start in range(0, len(items), size):
        encoded = []
        for position, result in enumerate(encoder.encode(items[start : start + size]), start):
            if isinstance(result, str):
                failures.append(f"{encoder.describe_sample(names[position])} {result}")
                if not skip_errors:
                    raise InputError(f"{failures[-1]}; repair it, or skip such samples with --on-error skip")
            else:
                encoded.append(result)
                encoded_positions.append(position)
        if encoded:
            end = len(encoded_positions)
            first = end - len(encoded)
            x[slice(first, end) if isinstance(x, torch.Tensor) else first] = torch.stack(encoded)  # type: ignore[index]
        if on_samples is not None:
            on_samples(min(start + size, len(items)), len(items))
    count = len(encoded_positions)
    x = x[:count] if isinstance(x, torch.Tensor) else x.take(torch.arange(count))
    return x, encoded_positions, failures
