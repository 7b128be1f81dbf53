"""Residual networks for small images: a 3×3 first convolution and no max pooling, as the field uses on CIFAR.

Weights of convolutions are initialized from He's normal distribution with fan-out, as in the public code of wide
residual networks, all other parameters by PyTorch's defaults. Convolutions of `preact-resnet18` have PyTorch's
defaults, too, as in the public code of DivideMix and ELR: no BatchNorm follows its last block, and with He's weights
its features are so large that training with a learning rate of 0.05 diverges. That code also has BatchNorm and ReLU
behind the first convolution and adds the activation relu(BatchNorm(x)), not x, where a shortcut has no weights; here
the shortcut is x, as in [2]_.

References
----------
.. [1] K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385
.. [2] K. He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016, https://arxiv.org/abs/1603.05027
.. [3] S. Zagoruyko and N. Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import relu

if TYPE_CHECKING:
    from collections.abc import Sequence


class ResNet(nn.Sequential):
    """A residual network: first convolution, stages of blocks, mean over pixels, linear layer.

    The first block of every stage but the first halves height and width. `widths` are the channels of the stages,
    `depths` their numbers of blocks.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, *, widths: Sequence[int], depths: Sequence[int]) -> None:
        stem = [_conv3x3(shape[0], widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU()]
        blocks = [BasicBlock(*arguments) for arguments in _block_arguments(widths[0], widths, depths)]
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
        _initialize(self)


class PreActResNet(nn.Sequential):
    """A residual network of pre-activation blocks; `stem` is the number of channels of the first convolution.

    With `final_norm`, BatchNorm and ReLU follow the last block, and convolutions have He's initial weights.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        stem: int,
        widths: Sequence[int],
        depths: Sequence[int],
        final_norm: bool,
    ) -> None:
        blocks = [PreActBlock(*arguments) for arguments in _block_arguments(stem, widths, depths)]
        norm = [nn.BatchNorm2d(widths[-1]), nn.ReLU()] if final_norm else []
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)
        super().__init__(_conv3x3(shape[0], stem), *blocks, *norm, *head)
        if final_norm:
            _initialize(self)


class BasicBlock(nn.Module):
    """relu(BN(conv(relu(BN(conv(x))))) + shortcut): the shortcut is x or, if shapes differ, BN(1×1 conv of x)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = _conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return relu(self.norm2(self.conv2(relu(self.norm1(self.conv1(x))))) + shortcut)


class PreActBlock(nn.Module):
    """conv(relu(BN(conv(a)))) + shortcut, a = relu(BN(x)): the shortcut is x or, if shapes differ, a 1×1 conv of a."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv3x3(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv3x3(outputs, outputs)
        self.shortcut = _conv1x1(inputs, outputs, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        a = relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(a)
        y: Tensor = self.conv2(relu(self.norm2(self.conv1(a)))) + shortcut
        return y


def preact_resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the pre-activation ResNet-18: 11,171,146 parameters for 3 channels and 10 classes."""
    return PreActResNet(shape, classes, stem=64, widths=(64, 128, 256, 512), depths=(2, 2, 2, 2), final_norm=False)


def resnet34(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return ResNet-34: 21,282,122 parameters for 3 channels and 10 classes."""
    return ResNet(shape, classes, widths=(64, 128, 256, 512), depths=(3, 4, 6, 3))


def wide_resnet_28_2(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the wide ResNet of depth 28 and widening factor 2: 1,467,610 parameters for 3 channels and 10 classes."""
    return PreActResNet(shape, classes, stem=16, widths=(32, 64, 128), depths=(4, 4, 4), final_norm=True)


def _block_arguments(inputs: int, widths: Sequence[int], depths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return input channels, output channels and stride of every block."""
    arguments = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for block in range(depth):
            arguments.append((inputs, width, 2 if stage > 0 and block == 0 else 1))
            inputs = width
    return arguments


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def _initialize(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
