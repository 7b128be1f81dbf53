"""A multi-layer perceptron for tables."""

from __future__ import annotations

import math

from torch import nn


class MLP(nn.Sequential):
    """Two hidden layers of 128 with BatchNorm and ReLU.

    The first layer standardises the columns: BatchNorm without weights, so that the scale of the data is
    part of the model and travels with it. Not so for texts, where it would blow up the rare words.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, *, standardise: bool = True) -> None:
        columns = math.prod(shape)
        super().__init__(
            nn.Flatten(),
            nn.BatchNorm1d(columns, affine=False) if standardise else nn.Identity(),
            nn.Linear(columns, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
