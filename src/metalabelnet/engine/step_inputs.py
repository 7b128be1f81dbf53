"""The tensors of a step's input, which are copied into fixed memory before a traced step is replayed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import Tensor

from metalabelnet.data.batches import Views

if TYPE_CHECKING:
    from collections.abc import Iterator


def input_tensors(inputs: object) -> list[Tensor]:
    """Return the tensors of a step's input, those of its views included, in a fixed order."""
    tensors: list[Tensor] = []
    for value in vars(inputs).values():
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, Views):
            tensors += input_tensors(value)
    return tensors


def with_tensors(inputs: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the input with other tensors, in the order of `input_tensors`."""
    changes: dict[str, Any] = {}
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor):
            changes[name] = next(tensors)
        elif isinstance(value, Views):
            changes[name] = with_tensors(value, tensors)
    return dataclasses.replace(inputs, **changes)
