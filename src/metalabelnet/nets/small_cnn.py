"""A CNN for small images, fast on a CPU."""

from __future__ import annotations

from torch import nn


class SmallCNN(nn.Sequential):
    """Three 3×3 convolutions (16-32-32) with BatchNorm and ReLU, max pooling after the last two, 64 hidden units."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        channels, height, width = shape
        super().__init__(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )
