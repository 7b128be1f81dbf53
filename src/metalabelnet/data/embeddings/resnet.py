"""ResNets with torchvision's names, built from the tensors of a weights file.

Number of blocks, channels and groups follow from the shapes of the tensors. What shapes do not show is as in
torchvision: the strides, a 7×7 first convolution and max pooling. Names may have a prefix, such as `module.` or
`encoder.`; tensors with other names, such as a last layer, are not used.

References
----------
.. [1] K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import relu

from metalabelnet.errors import InputError, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_BLOCK = "layer1.0.conv1.weight"
# Convolutions in a block, and blocks of the four stages.
ARCHITECTURES = {
    "resnet18": (2, (2, 2, 2, 2)),
    "resnet34": (2, (3, 4, 6, 3)),
    "resnet50": (3, (3, 4, 6, 3)),
    "resnet101": (3, (3, 4, 23, 3)),
    "resnet152": (3, (3, 8, 36, 3)),
}


class PooledResNet(nn.Module):
    """A ResNet without its last layer: images (N, 3, height, width) become their features, averaged over pixels."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        stem = weights["conv1.weight"].shape[0]
        self.conv1, self.bn1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for stage, blocks in enumerate(count_blocks(weights), start=1):
            layer = [Block(weights, f"layer{stage}.{k}", 2 if stage > 1 and k == 0 else 1) for k in range(blocks)]
            self.add_module(f"layer{stage}", nn.Sequential(*layer))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return x.mean((2, 3))


class Block(nn.Module):
    """A residual block of two convolutions (3×3), or of three (1×1, 3×3, 1×1), with the shapes of these weights."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, stride: int) -> None:
        super().__init__()
        self.convolutions = 3 if f"{name}.conv3.weight" in weights else 2
        for k in range(1, self.convolutions + 1):
            outputs, inputs_of_group, kernel, _ = weights[f"{name}.conv{k}.weight"].shape
            inputs = inputs_of_group if k == 1 else weights[f"{name}.conv{k - 1}.weight"].shape[0]
            has_stride = k == (1 if self.convolutions == 2 else 2)
            conv = nn.Conv2d(
                inputs,
                outputs,
                kernel,
                stride if has_stride else 1,
                kernel // 2,
                groups=inputs // inputs_of_group,
                bias=False,
            )
            self.add_module(f"conv{k}", conv)
            self.add_module(f"bn{k}", nn.BatchNorm2d(outputs))
        self.downsample = None
        if f"{name}.downsample.0.weight" in weights:
            outputs, inputs = weights[f"{name}.downsample.0.weight"].shape[:2]
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = x
        for k in range(1, self.convolutions + 1):
            y = self.get_submodule(f"bn{k}")(self.get_submodule(f"conv{k}")(y))
            y = relu(y) if k < self.convolutions else y
        return relu(y + (x if self.downsample is None else self.downsample(x)))


def build_resnet(weights: Mapping[str, Tensor], file: str, architecture: str | None = None) -> nn.Module:
    """Return the network with these weights, in evaluation mode. `file` names them in errors.

    Raises InputError if they are not those of a ResNet, or of another one than the named architecture.
    """
    start = next((name for name in weights if name.endswith(FIRST_BLOCK)), None)
    if start is None:
        raise InputError(
            f"{file}: there is no tensor {FIRST_BLOCK}; give the weights of a ResNet with torchvision's names, or "
            "choose from timm:NAME, torchvision:NAME"
        )
    prefix = start.removesuffix(FIRST_BLOCK)
    own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    try:
        net = PooledResNet(own)
    except (KeyError, ValueError, ZeroDivisionError, RuntimeError) as error:
        raise InputError(
            f"{file}: the tensors are not those of a ResNet with torchvision's names ({error!r})"
        ) from error
    expected = net.state_dict()
    for name, tensor in expected.items():
        if name.endswith("num_batches_tracked"):
            continue
        if name not in own or own[name].shape != tensor.shape:
            shape = tuple(own[name].shape) if name in own else "missing"
            raise InputError(f"{file}: {prefix}{name} is {shape}, not {tuple(tensor.shape)}, as a ResNet needs")
    if architecture is not None:
        _check_architecture(own, architecture, file)
    net.load_state_dict({name: own.get(name, tensor) for name, tensor in expected.items()})
    return net.eval()


def count_blocks(weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Return the number of blocks of each of the four stages."""
    return tuple(
        next(k for k in itertools.count() if f"layer{stage}.{k}.conv1.weight" not in weights) for stage in range(1, 5)
    )


def _check_architecture(weights: Mapping[str, Tensor], name: str, file: str) -> None:
    if name not in ARCHITECTURES:
        raise unknown_name_error("architecture", name, ARCHITECTURES)
    found = 3 if "layer1.0.conv3.weight" in weights else 2, count_blocks(weights)
    if found != ARCHITECTURES[name]:
        blocks = "+".join(map(str, found[1]))
        raise InputError(
            f"{file}: is not a {name}: it has {blocks} blocks of {found[0]} convolutions; leave {name}: out"
        )
