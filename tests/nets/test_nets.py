"""The networks by name, their initialization, and the last layer of arbitrary networks."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from metalabelnet.errors import InputError
from metalabelnet.nets import NETS, build, copy_with_new_head, default_net
from metalabelnet.nets.head import FeatureExtractor, find_head

SHAPES = [
    ("cnn8", (3, 32, 32)),
    ("cnn8", (3, 40, 24)),
    ("preact-resnet18", (1, 8, 8)),
    ("wide-resnet-28-2", (5, 16, 16)),
    ("small-cnn", (1, 8, 8)),
    ("small-cnn", (1, 28, 28)),
    ("mlp", (7,)),
    ("mlp", (1, 8, 8)),
]


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_logits_head_and_features(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, shape, 5, seed=0)
    x = torch.randn(4, *shape)
    head = find_head(net, x, 5)
    last = net.get_submodule(head)
    assert net(x).shape == (4, 5)
    v = FeatureExtractor(net, head)(x)
    net.eval()
    torch.testing.assert_close(last(v), net(x))


def test_cnn8_layers() -> None:
    net = build("cnn8", (3, 32, 32), 10, seed=0)
    convolutions = [(m.in_channels, m.out_channels) for m in net if isinstance(m, nn.Conv2d)]
    assert convolutions == [(3, 64), (64, 64), (64, 128), (128, 128), (128, 196), (196, 196)]
    assert [(m.in_features, m.out_features) for m in net if isinstance(m, nn.Linear)] == [(196 * 16, 256), (256, 10)]
    assert sum(isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d) for m in net) == 7
    assert sum(isinstance(m, nn.MaxPool2d) for m in net) == 3
    assert [type(m).__name__ for m in net][6] == "MaxPool2d"


def assert_normal(weights: Tensor, std: float) -> None:
    """Mean, standard deviation and tails of a normal distribution, within 4.5 standard errors."""
    n = weights.numel()
    assert abs(float(weights.mean())) < 4.5 * std / math.sqrt(n)
    assert abs(float(weights.std()) - std) < 4.5 * std / math.sqrt(2 * n)
    tail = math.erfc(math.sqrt(1.5))  # P(|z| > √3), which is 0 for a uniform distribution
    share = float((weights.abs() > math.sqrt(3) * std).double().mean())
    assert abs(share - tail) < 4.5 * math.sqrt(tail * (1 - tail) / n)


def assert_uniform(weights: Tensor, bound: float) -> None:
    """Range, mean and variance of a uniform distribution, the latter two within 4.5 standard errors."""
    n = weights.numel()
    assert float(weights.abs().max()) <= bound
    assert abs(float(weights.mean())) < 4.5 * bound / math.sqrt(3 * n)
    assert abs(float(weights.square().mean()) - bound**2 / 3) < 4.5 * bound**2 * math.sqrt(4 / 45 / n)


def test_cnn8_initialization() -> None:
    """Convolutions: He normal with fan-out, as in the authors' code. All other parameters: PyTorch's defaults."""
    net = build("cnn8", (3, 32, 32), 10, seed=0)
    layers = [module for module in net if list(module.parameters())]
    assert [type(layer).__name__ for layer in layers] == [
        *["Conv2d", "BatchNorm2d"] * 6, "Linear", "BatchNorm1d", "Linear"
    ]  # fmt: skip
    for layer in layers:
        weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
        if isinstance(layer, nn.Conv2d):
            assert_normal(weight, math.sqrt(2 / (9 * layer.out_channels)))
            assert_uniform(bias, 1 / math.sqrt(9 * layer.in_channels))
        elif isinstance(layer, nn.Linear):
            assert_uniform(weight, 1 / math.sqrt(layer.in_features))
            assert_uniform(bias, 1 / math.sqrt(layer.in_features))
        else:
            assert torch.equal(weight, torch.ones_like(weight))
            assert torch.equal(bias, torch.zeros_like(bias))
            assert torch.equal(layer.running_mean, torch.zeros_like(layer.running_mean))
            assert torch.equal(layer.running_var, torch.ones_like(layer.running_var))


def test_cnn8_initialization_is_determined_by_seed() -> None:
    first, same, other = (build("cnn8", (3, 32, 32), 10, seed=seed) for seed in (1, 1, 2))
    for (name, weight), equal, different in zip(
        first.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, equal), name
        layer = first.get_submodule(name.partition(".")[0])
        assert torch.equal(weight, different) == isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d), name


def test_seed_determines_weights() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    a, b, c = (build("small-cnn", (1, 8, 8), 3, seed=seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(state, torch.get_rng_state())


def test_default_net_depends_on_shape() -> None:
    assert [default_net(shape) for shape in ((12,), (1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 2, 2))] == [
        "mlp", "small-cnn", "small-cnn", "cnn8", "mlp"
    ]  # fmt: skip


def test_wrong_names_and_shapes_raise_input_error() -> None:
    with pytest.raises(InputError, match="did you mean 'cnn8'"):
        build("cnn9", (3, 32, 32), 10, seed=0)
    for name, shape in (("cnn8", (5,)), ("cnn8", (3, 4, 4)), ("resnet34", (3, 7, 9)), ("small-cnn", (1, 2, 2))):
        with pytest.raises(InputError, match=f"network {name} does not accept samples of shape"):
            build(name, shape, 10, seed=0)
    assert all(kind.summary for kind in NETS.values())


class ShuffledLayers(nn.Module):
    """Lists its layers in another order than it executes them, and has a layer that is not executed."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.hidden, self.unused = nn.Linear(6, 3), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).relu()).log_softmax(1)


def test_head_is_last_layer_executed() -> None:
    net, x = ShuffledLayers(), torch.randn(5, 4)
    assert find_head(net, x, 3) == "out"
    torch.testing.assert_close(FeatureExtractor(net, "out")(x), net.hidden(x).relu())


def test_named_head_is_checked() -> None:
    net, x = ShuffledLayers(), torch.randn(5, 4)
    assert find_head(net, x, 3, "out") == "out"
    with pytest.raises(InputError, match="did you mean 'out'"):
        find_head(net, x, 3, "outt")
    with pytest.raises(InputError, match="'hidden' does not have 3 outputs, one per class"):
        find_head(net, x, 3, "hidden")


def test_network_without_last_linear_layer_raises_input_error() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match=r"no last linear layer with 3 outputs.*end the network with nn\.Linear"):
        find_head(net, torch.randn(2, 1, 4, 4), 3)


def test_logits_of_wrong_shape_raise_input_error() -> None:
    with pytest.raises(InputError, match=r"returns \(5, 4\) for 5 samples, not logits of shape \(5, 3\)"):
        find_head(nn.Linear(2, 4), torch.randn(5, 2), 3)


def test_find_head_has_no_side_effects() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    before = {k: t.clone() for k, t in net.state_dict().items()}
    find_head(net, torch.randn(5, 4), 3)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())
    assert all(torch.equal(before[k], t) for k, t in net.state_dict().items())


def test_copy_with_new_head_copies_all_but_last_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3), nn.Softplus())
    net(torch.randn(8, 4))  # updates the running statistics
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again, other = (copy_with_new_head(net, seed=seed) for seed in (1, 1, 2))
    assert str(first) == str(net)
    assert torch.equal(first[0].weight, net[0].weight)
    assert torch.equal(first[1].running_mean, net[1].running_mean)
    assert torch.equal(first[3].weight, again[3].weight)
    assert not torch.equal(first[3].weight, other[3].weight)
    assert not torch.equal(first[3].weight, net[3].weight)
    assert torch.equal(state, torch.get_rng_state())


def test_copy_with_new_head_skips_frozen_and_parametrized_layers() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5), parametrizations.weight_norm(nn.Linear(5, 3, bias=False)))
    net[1].requires_grad_(requires_grad=False)
    copied = copy_with_new_head(net, seed=1)
    assert not torch.equal(copied[0].weight, net[0].weight)  # the last layer that can be initialized
    assert torch.equal(copied[1].weight, net[1].weight)
    assert torch.equal(copied[2].weight, net[2].weight)
