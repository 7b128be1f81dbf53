"""The 8-layer CNN of the paper's CIFAR-10 experiments."""

from __future__ import annotations

from torch import nn


class CNN8(nn.Sequential):
    """Six 3×3 convolutions (64-64-128-128-196-196) and two linear layers (256, classes).

    BatchNorm and ReLU follow every layer but the last; 2×2 max pooling follows each pair of convolutions. Weights of
    convolutions are initialized from He's normal distribution with fan-out, as in the authors' code, all other
    parameters by PyTorch's defaults.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        channels, height, width = shape
        layers: list[nn.Module] = []
        for out in (64, 128, 196):
            layers += [*_block(channels, out), *_block(out, out), nn.MaxPool2d(2)]
            channels = out
        super().__init__(
            *layers,
            nn.Flatten(),
            nn.Linear(channels * (height // 8) * (width // 8), 256),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
