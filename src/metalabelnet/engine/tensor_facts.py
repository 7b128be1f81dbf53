"""Facts about tensors that are known while a step is traced, beyond their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator


class TensorFacts:
    """One fact for each tensor, found by the tensor's memory: autograd returns other objects for the same storage.

    A fact may hold tensors itself. Both are kept alive, so that no other tensor is allocated at the same address. A
    fact is dropped when its tensor, or a tensor it holds, is written to.
    """

    def __init__(self) -> None:
        self._facts: dict[Any, tuple[Tensor, Any, list[int]]] = {}

    def __setitem__(self, tensor: Tensor, fact: Any) -> None:
        self._facts[storage_key(tensor)] = tensor, fact, _versions(tensor, fact)

    def set_after_write(self, tensor: Tensor, fact: Any) -> None:
        """Set the fact of a tensor that the current operator writes to; PyTorch counts the write when it returns."""
        version, *others = _versions(tensor, fact)
        self._facts[storage_key(tensor)] = tensor, fact, [version + 1, *others]

    def get(self, tensor: Tensor) -> Any:
        """Return the fact of this tensor, or None."""
        _, fact, versions = self._facts.get(storage_key(tensor), (None, None, []))
        return fact if versions == _versions(tensor, fact) else None


def storage_key(tensor: Tensor) -> Any:
    """Return what two tensors over the same memory have in common: address, type, shape and strides."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _versions(*items: Any) -> list[int]:
    """Return how often each tensor in these has been written to."""
    return [tensor._version for tensor in _tensors_in(items)]  # noqa: SLF001 (its only name)


def _tensors_in(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, (tuple, list, Mapping)):
        for part in item.values() if isinstance(item, Mapping) else item:
            yield from _tensors_in(part)
