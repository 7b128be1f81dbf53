"""One-hot labels that a traced step can compute."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Return one-hot labels with the number of columns and the type of `like`; zeros for the label −1.

    `torch.nn.functional.one_hot` reads the labels on the host to check them, so that it cannot be traced.
    """
    return (labels[:, None] == torch.arange(like.shape[1], device=labels.device)).to(like)
