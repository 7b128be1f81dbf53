"""A multi-layer perceptron for tables."""

from __future__ import annotations

import math

from torch import nn


class MLP(nn.Sequential):
    """Two hidden layers of 128 units with BatchNorm and ReLU.

    The first layer standardizes the columns: BatchNorm without weights, so that the scale of the data is saved with the
    model. It is omitted for texts, where it would amplify rare words.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, *, standardize: bool = True) -> None:
        columns = math.prod(shape)
        super().__init__(
            nn.Flatten(),
            nn.BatchNorm1d(columns, affine=False) if standardize else nn.Identity(),
            nn.Linear(columns, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
