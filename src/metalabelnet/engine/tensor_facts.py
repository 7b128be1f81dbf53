"""What a recording knows of its tensors, beyond their numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


class Known:
    """What is known of tensors, by where their numbers lie: autograd hands back others than those it was given.

    What is known are tensors too, and both are kept, so that no other comes to lie there. Where one of them was written
    into since, nothing is known any more.
    """

    def __init__(self) -> None:
        self._found: dict[Any, tuple[Tensor, Any, list[int]]] = {}

    def __setitem__(self, tensor: Tensor, what: Any) -> None:
        self._found[place(tensor)] = tensor, what, _versions(tensor, what)

    def after_writing(self, tensor: Tensor, what: Any) -> None:
        """Of a tensor that an operator has written into: PyTorch counts that when the operator is through."""
        version, *others = _versions(tensor, what)
        self._found[place(tensor)] = tensor, what, [version + 1, *others]

    def get(self, tensor: Tensor) -> Any:
        """What is known of this tensor, or None."""
        _, what, versions = self._found.get(place(tensor), (None, None, []))
        return what if versions == _versions(tensor, what) else None


def place(tensor: Tensor) -> Any:
    """Where its numbers lie, and how."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _versions(*of: Any) -> list[int]:
    """How often each of these tensors has been written into."""
    tensors = [leaf for leaf in pytree.tree_leaves(of) if isinstance(leaf, Tensor)]
    return [tensor._version for tensor in tensors]  # noqa: SLF001 (its only name)
