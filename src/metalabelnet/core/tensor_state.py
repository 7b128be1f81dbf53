"""What a method remembers beside its networks and optimizers: tensors by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class TensorState:
    """Tensors that a method works with from epoch to epoch: part of a checkpoint, not of the model.

    They are changed in place and stay where they are: a step that was recorded goes on reading them there.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def state_dict(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return dict(self.tensors)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over, into the tensors that are there."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state_dict[name])


class Estimates(nn.Module):
    """Tensors that a method has found out about the data, such as a noise rate: kept with the model, never learned."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
