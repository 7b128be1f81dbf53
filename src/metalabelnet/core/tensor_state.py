"""Named tensors that a method needs besides its networks and optimizers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from metalabelnet.core.sharded_table import ShardedTable


class TensorState:
    """Named tensors that a method updates during training. They are part of a checkpoint, not of the model.

    Update them in place: a compiled step or CUDA graph keeps reading the same memory. Every rank has all tensors, and
    its own rows of those that are passed as `ShardedTable`.
    """

    def __init__(self, **tensors: Tensor | ShardedTable) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor; the own rows of a table."""
        tensor = self.tensors[name]
        return tensor.local if isinstance(tensor, ShardedTable) else tensor

    def table(self, name: str) -> ShardedTable:
        """Return a table, whose rows can be looked up on all ranks."""
        table = self.tensors[name]
        assert isinstance(table, ShardedTable)
        return table

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {n: t.state() if isinstance(t, ShardedTable) else t for n, t in self.tensors.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing tensors."""
        for name, tensor in self.tensors.items():
            if isinstance(tensor, ShardedTable):
                tensor.load(state_dict[name])
            else:
                tensor.copy_(state_dict[name])


class Estimates(nn.Module):
    """Named tensors that a method estimates from the data, such as a noise rate. They are buffers of the model."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
