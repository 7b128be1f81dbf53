"""Named tensors that a method needs besides its networks and optimizers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class TensorState:
    """Named tensors that a method updates during training. They are part of a checkpoint, not of the model.

    Update them in place: a compiled step or CUDA graph keeps reading the same memory.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return dict(self.tensors)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing tensors."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state_dict[name])


class Estimates(nn.Module):
    """Named tensors that a method estimates from the data, such as a noise rate. They are buffers of the model."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
