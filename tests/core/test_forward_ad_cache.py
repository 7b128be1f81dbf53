"""The forward-mode pass with cached values gives the same result as without, and falls back when calls differ."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from metalabelnet.core.forward_ad_cache import ForwardADCache
from metalabelnet.core.forward_pass import Theta, forward, mixed_precision, trainable_parameters
from metalabelnet.core.meta_gradient import gradients
from networks import NETWORKS, make

N, C = 6, 3


class Net(nn.Module):
    """The tested operations between a convolution and a linear layer."""

    def __init__(self, operations: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.bare, self.beside = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.Conv2d(2, 4, 3)
        self.samples, self.last, self.operations, self.passes = nn.BatchNorm2d(2), nn.LazyLinear(C), operations, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.last(self.operations(self, x).flatten(1))


def in_place_after_convolution(net: Net, x: Tensor) -> Tensor:
    return net.second(functional.relu(net.first(x), inplace=True))


def in_place_with_discarded_result(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.first(x))
    functional.relu(y, inplace=True)
    return net.second(y)


def overwritten_in_place(net: Net, x: Tensor) -> Tensor:
    y = functional.max_pool2d(net.norm(net.first(x)).tanh(), 2)
    y += 1
    return net.second(y)


def layers_used_twice(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.second(net.norm(net.second(net.first(x))).relu()))
    return torch.relu(y) - y


def overlapping_windows(net: Net, x: Tensor) -> Tensor:
    y = torch.max_pool2d(net.first(x), 3, 2, 1)
    y = functional.max_pool2d(y, (2, 1), stride=1, padding=(1, 0), dilation=(1, 2), ceil_mode=True)
    return functional.max_pool2d(y, 2, return_indices=True)[0]


def uncached_norms(net: Net, x: Tensor) -> Tensor:
    y = net.bare(net.first(net.samples(x)))
    return functional.batch_norm(y, net.norm.running_mean, net.norm.running_var, net.norm.weight, net.norm.bias)


def keyword_arguments(net: Net, x: Tensor) -> Tensor:
    y = functional.conv2d(input=x, weight=net.first.weight, bias=net.first.bias)
    return functional.conv2d(y, weight=net.second.weight, bias=net.second.bias, stride=2)


def alternating_order(net: Net, x: Tensor) -> Tensor:
    """Two branches, whose order of execution alternates between passes."""
    branches = [lambda: net.norm(net.first(x)).relu(), lambda: functional.max_pool2d(net.beside(x), 1)]
    turn = net.passes % 2
    one, two = branches[turn](), branches[1 - turn]()
    wide, narrow = (two, one) if turn else (one, two)
    return torch.cat([wide.flatten(1), narrow.flatten(1)], 1)


def alternating_order_equal_shapes(net: Net, x: Tensor) -> Tensor:
    """Two branches of equal shapes that only the weights distinguish; their order alternates between passes."""
    y = net.first(x)
    branches = [lambda: net.second(y).relu(), lambda: net.third(y).relu()]
    turn = net.passes % 2
    one, two = branches[turn](), branches[1 - turn]()
    return torch.cat([two, one] if turn else [one, two], 1)


def more_calls_in_second_pass(net: Net, x: Tensor) -> Tensor:
    y = net.first(x).relu()
    return y if net.passes % 2 else 2 * y - net.first(x).relu()


OPERATIONS = [
    in_place_after_convolution,
    in_place_with_discarded_result,
    overwritten_in_place,
    layers_used_twice,
    overlapping_windows,
    uncached_norms,
    keyword_arguments,
    alternating_order,
    alternating_order_equal_shapes,
    more_calls_in_second_pass,
]


def samples(seed: int = 0) -> Tensor:
    return torch.randn(N, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(operations: Callable[[Net, Tensor], Tensor]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(operations).double()
        net(samples())
        for weight in (net.norm.weight, net.norm.bias):
            nn.init.normal_(weight)
    net.passes = 0
    return net.train()


def direction(theta: Theta) -> Theta:
    g = torch.Generator().manual_seed(1)
    return {name: torch.randn(weight.shape, dtype=weight.dtype, generator=g) for name, weight in theta.items()}


def tangent(net: nn.Module, x: Tensor, theta: Theta, cache: ForwardADCache | None) -> tuple[Tensor, Tensor]:
    tangents = direction(theta)
    with torch.no_grad(), forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(weight.detach(), tangents[name]) for name, weight in theta.items()}
        return forward_ad.unpack_dual(forward(net, x, dual, seed=3, update_statistics=False, cache=cache))


def check(net: nn.Module, x: Tensor) -> ForwardADCache:
    """Compare a cached pass and a forward-mode pass with the same two passes without cache, including gradients."""
    theta, cache = trainable_parameters(net), ForwardADCache()
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    z = forward(net, x, theta, seed=3, update_statistics=True, cache=cache)
    after = {name: buffer.clone() for name, buffer in net.named_buffers()}
    cached = tangent(net, x, theta, cache)
    grad_theta = gradients(z.square().sum(), theta)

    net.load_state_dict(buffers, strict=False)
    plain = forward(net, x, theta, seed=3, update_statistics=True)
    assert torch.equal(z, plain)
    for name, buffer in net.named_buffers():
        assert torch.equal(after[name], buffer), name
    for ours, theirs in zip(cached, tangent(net, x, theta, None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for name, grad_weight in gradients(plain.square().sum(), theta).items():
        torch.testing.assert_close(grad_theta[name], grad_weight, rtol=1e-12, atol=1e-12)
    return cache


@pytest.mark.parametrize("name", NETWORKS)
def test_tangent_equals_plain_forward_mode(name: str) -> None:
    assert not check(make(name).train(), samples()).calls  # all cached tensors are consumed


@pytest.mark.parametrize("operations", OPERATIONS)
def test_tangent_of_unusual_networks(operations: Callable[[Net, Tensor], Tensor]) -> None:
    check(network(operations), samples())


@pytest.mark.parametrize("frozen", ["0.weight", "1.weight", "1.bias", "5.weight"])
def test_tangent_with_frozen_weights(frozen: str) -> None:
    net = make("conv").train()
    net.get_parameter(frozen).requires_grad_(False)
    check(net, samples())


def test_tangent_in_channels_last_and_eval_mode() -> None:
    check(make("conv").train(), samples().contiguous(memory_format=torch.channels_last))
    check(make("conv").eval(), samples())


class OperatorCounter(TorchDispatchMode):
    """Counts calls of each operator; batch norm that computes statistics is counted as "statistics"."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.count["statistics" if name == "native_batch_norm" and args[5] else name] += 1
        return func(*args, **(kwargs or {}))


def test_primal_values_are_not_recomputed() -> None:
    """Two products per layer, and one for the first, whose input has no tangent."""
    net, x = make("conv").train(), samples()
    theta, cache = trainable_parameters(net), ForwardADCache()
    forward(net, x, theta, seed=3, update_statistics=True, cache=cache)
    with OperatorCounter() as with_cache:
        tangent(net, x, theta, cache)
    with OperatorCounter() as without_cache:
        tangent(net, x, theta, None)
    names = ("convolution", "relu", "max_pool2d_with_indices", "statistics")
    assert [with_cache.count[name] for name in names] == [1, 0, 0, 0]
    assert all(without_cache.count[name] > with_cache.count[name] for name in names)
    assert with_cache.count["mm"] + with_cache.count["addmm"] == 2


@pytest.mark.parametrize("bfloat16", [False, True])
def test_pass_with_other_weights_ignores_cache(bfloat16: bool) -> None:
    """Also in bfloat16, where the multiplied weights are copies."""
    net, x = make("conv").float().train(), samples().float()
    theta, cache = trainable_parameters(net), ForwardADCache()
    moved = {name: weight.detach() + 0.1 for name, weight in theta.items()}
    with mixed_precision(enabled=bfloat16):
        forward(net, x, theta, seed=3, update_statistics=False, cache=cache)
        ours = forward(net, x, moved, seed=3, update_statistics=False, cache=cache)
        assert torch.equal(ours, forward(net, x, moved, seed=3, update_statistics=False))


def test_batch_norm_of_one_value_raises_pytorch_error() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(128, 4), nn.BatchNorm1d(4)).double()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        forward(net, samples()[:1], trainable_parameters(net), seed=3, update_statistics=True, cache=ForwardADCache())


def test_forward_mode_is_imported_in_advance() -> None:
    """A later import would fragment the memory between activations."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore');"
        "from metalabelnet.core.meta_gradient import MetaGradient; name = 'torch._decomp.decompositions_for_jvp';"
        "MetaGradient('double-backward'); before = name in sys.modules; MetaGradient('exact');"
        "print(before, name in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True"]
