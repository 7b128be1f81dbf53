"""A single linear layer, for fixed features."""

from __future__ import annotations

import math

from torch import nn


class LinearNet(nn.Sequential):
    """Flatten and one linear layer: logistic regression as a network."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))
