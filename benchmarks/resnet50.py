"""The layers of torchvision's ResNet-50, to count what ranks send where torchvision is not installed.

python benchmarks/rank_traffic.py --net benchmarks/resnet50.py:resnet50 --batch 256 --ranks 8 --image 224
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # channels of the 3×3 convolutions, blocks


class Bottleneck(nn.Module):
    """Convolutions 1×1, 3×3 and 1×1 with BatchNorm, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != 4 * width:
            convolution = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.layers(x) + self.shortcut(x))


def resnet50(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network: 23,508,032 weights before its last layer, 53 BatchNorm layers with 26,560 channels."""
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for number, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if number and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
