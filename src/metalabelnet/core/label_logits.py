"""Soft labels kept in a table: one row of label logits for each training sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import functional

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class SoftLabelTable:
    """Label logits ỹ with ŷ = softmax(ỹ), addressed by the sample's row number, never by its place in an epoch.

    A row starts as K times the one-hot vector of the given label: the larger K, the longer the given label
    is believed. A row without a label starts uniform.
    """

    def __init__(self, given: Tensor, classes: int, k: float, dtype: torch.dtype) -> None:
        labeled = (given >= 0).to(dtype)[:, None]
        self.logits = k * labeled * functional.one_hot(given.clamp_min(0), classes).to(dtype)

    def soft_labels(self) -> Tensor:
        """ŷ of every row."""
        return self.logits.softmax(1)

    def state_dict(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return {"logits": self.logits}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over, into the table that is there."""
        self.logits.copy_(state_dict["logits"])
