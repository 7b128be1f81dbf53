"""A table of learned soft labels: one row of label logits for each training sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import functional

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class SoftLabelTable:
    """Label logits ỹ with ŷ = softmax(ỹ), indexed by the sample's row number.

    A row is initialized to K times the one-hot vector of the given label: a larger K keeps the soft label close to the
    given label for longer. The row of an unlabeled sample (−1) is initialized to zeros, a uniform soft label.
    """

    def __init__(self, given: Tensor, classes: int, k: float, dtype: torch.dtype) -> None:
        labeled = (given >= 0).to(dtype)[:, None]
        self.logits = k * labeled * functional.one_hot(given.clamp_min(0), classes).to(dtype)

    def soft_labels(self) -> Tensor:
        """Return ŷ of every row."""
        return self.logits.softmax(1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"logits": self.logits}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing table."""
        self.logits.copy_(state_dict["logits"])
