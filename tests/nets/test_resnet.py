"""Residual networks: parameter counts, the forward pass computed from the papers' formulas, initialization."""

import copy
import functools
import math

import pytest
import torch
from test_nets import assert_normal, assert_uniform
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.nets import build

# Channels of the first convolution; channels and blocks of each stage; pre-activation; norm before the final mean.
LAYOUTS = {
    "preact-resnet18": (64, [(64, 2), (128, 2), (256, 2), (512, 2)], True, False),
    "resnet34": (64, [(64, 3), (128, 4), (256, 6), (512, 3)], False, True),
    "wide-resnet-28-2": (16, [(32, 4), (64, 4), (128, 4)], True, True),
}


@functools.cache
def build_once(name: str) -> nn.Module:
    return build(name, (2, 12, 9), 4, seed=0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("preact-resnet18", 11_171_146), ("resnet34", 21_282_122), ("wide-resnet-28-2", 1_467_610)],
)
def test_parameter_counts(name: str, parameters: int) -> None:
    """The published counts, and the sum over the layers: 9·in·out per convolution, 2·channels per BatchNorm."""
    first, stages, preactivated, final_norm = LAYOUTS[name]
    count, inputs = 9 * 3 * first, first
    for stage, (width, blocks) in enumerate(stages):
        for block in range(blocks):
            projects = inputs != width or (stage > 0 and block == 0)
            count += 9 * inputs * width + 9 * width * width + 2 * width + 2 * (inputs if preactivated else width)
            count += projects * (inputs * width + (0 if preactivated else 2 * width))
            inputs = width
    count += 2 * (inputs if preactivated else first) * final_norm + (inputs + 1) * 10
    assert count == parameters
    with torch.device("meta"):
        net = build(name, (3, 32, 32), 10, seed=0)
    assert sum(weight.numel() for weight in net.parameters()) == parameters


class Functional:
    """A network's forward pass from its weights in order, without its modules."""

    def __init__(self, net: nn.Module, *, training: bool) -> None:
        self.convolutions = iter([m.weight for m in net.modules() if isinstance(m, nn.Conv2d)])
        self.norms = iter([m for m in net.modules() if isinstance(m, nn.BatchNorm2d)])
        self.training = training

    def conv(self, x: Tensor, stride: int = 1) -> Tensor:
        """A convolution as a matrix product of patches."""
        weight = next(self.convolutions)
        size = weight.shape[-1]
        patches = functional.unfold(x, size, padding=size // 2, stride=stride)
        side = [-(-length // stride) for length in x.shape[2:]]
        return (weight.flatten(1) @ patches).view(len(x), len(weight), *side)

    def norm(self, x: Tensor) -> Tensor:
        module = next(self.norms)
        mean, var = module.running_mean, module.running_var
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        shape = (1, -1, 1, 1)
        normalized = (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
        return normalized * module.weight.view(shape) + module.bias.view(shape)


def forward_by_formula(name: str, net: nn.Module, x: Tensor, *, training: bool) -> Tensor:
    """Return logits by the papers' formulas; layers are taken in the order in which the modules list them."""
    first, stages, preactivated, final_norm = LAYOUTS[name]
    layers, inputs = Functional(net, training=training), first
    x = layers.conv(x)
    if not preactivated:
        x = layers.norm(x).clamp_min(0)
    for stage, (width, blocks) in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            projects = stride == 2 or inputs != width
            if preactivated:
                a = layers.norm(x).clamp_min(0)
                residual = layers.conv(layers.norm(layers.conv(a, stride)).clamp_min(0))
                x = residual + (layers.conv(a, stride) if projects else x)
            else:
                hidden = layers.norm(layers.conv(x, stride)).clamp_min(0)
                residual = layers.norm(layers.conv(hidden))
                x = (residual + (layers.norm(layers.conv(x, stride)) if projects else x)).clamp_min(0)
            inputs = width
    if preactivated and final_norm:
        x = layers.norm(x).clamp_min(0)
    assert next(layers.convolutions, None) is None
    assert next(layers.norms, None) is None
    head = net[-1]
    return x.mean((2, 3)) @ head.weight.T + head.bias


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_forward_pass_equals_formulas(name: str) -> None:
    net = copy.deepcopy(build_once(name)).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    tensor += 0.1 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        x = torch.randn(3, 2, 12, 9, generator=generator, dtype=torch.float64)
        for training in (False, True):
            expected = forward_by_formula(name, net, x, training=training)
            torch.testing.assert_close(net.train(training)(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_initialization(name: str) -> None:
    """Convolutions: He normal with fan-out, but not in preact-resnet18. All other parameters: PyTorch's defaults."""
    for module in build_once(name).modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Conv2d):
            assert module.bias is None
            area = module.kernel_size[0] ** 2
            weights = weight.detach().flatten()[:100_000].double()
            if name == "preact-resnet18":
                assert_uniform(weights, 1 / math.sqrt(module.in_channels * area))
            else:
                assert_normal(weights, math.sqrt(2 / (module.out_channels * area)))
        elif isinstance(module, nn.Linear):
            assert_uniform(weight.detach().double(), 1 / math.sqrt(module.in_features))
            assert_uniform(module.bias.detach().double(), 1 / math.sqrt(module.in_features))
        elif isinstance(module, nn.BatchNorm2d):
            assert torch.equal(weight, torch.ones_like(weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))


def test_features_of_preact_resnet18_are_small() -> None:
    """No BatchNorm bounds them. With He's weights their mean square is 268, and a learning rate of 0.05 diverges."""
    features = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in list(build("preact-resnet18", (3, 32, 32), 10, seed=0))[:-1]:
            features = layer(features)
    assert float((features**2).sum(1).mean()) < 130


def test_initialization_is_determined_by_seed() -> None:
    first, same, other = (build("wide-resnet-28-2", (3, 32, 32), 10, seed=seed) for seed in (1, 1, 2))
    for (name, weight), equal, different in zip(
        first.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, equal), name
        assert torch.equal(weight, different) == isinstance(
            first.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d
        ), name
