"""The pass with tangents: what it recalls of the first pass, when it does not, and that the answer is the same."""

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

from metalabelnet.core.forward_ad_cache import Products
from metalabelnet.core.forward_pass import Theta, forward, low_precision, trainable
from metalabelnet.core.meta_gradient import gradients
from networks import NETWORKS, make

N, C = 6, 3


class Net(nn.Module):
    """A convolution, what is asked about, and a linear layer."""

    def __init__(self, middle: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.bare, self.beside = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.Conv2d(2, 4, 3)
        self.samples, self.last, self.middle, self.passes = nn.BatchNorm2d(2), nn.LazyLinear(C), middle, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.last(self.middle(self, x).flatten(1))


def in_place_after_a_product(net: Net, x: Tensor) -> Tensor:
    return net.second(functional.relu(net.first(x), inplace=True))


def in_place_without_its_result(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.first(x))
    functional.relu(y, inplace=True)
    return net.second(y)


def overwritten(net: Net, x: Tensor) -> Tensor:
    y = functional.max_pool2d(net.norm(net.first(x)).tanh(), 2)
    y += 1
    return net.second(y)


def used_twice(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.second(net.norm(net.second(net.first(x))).relu()))
    return torch.relu(y) - y


def overlapping_windows(net: Net, x: Tensor) -> Tensor:
    y = torch.max_pool2d(net.first(x), 3, 2, 1)
    y = functional.max_pool2d(y, (2, 1), stride=1, padding=(1, 0), dilation=(1, 2), ceil_mode=True)
    return functional.max_pool2d(y, 2, return_indices=True)[0]


def other_norms(net: Net, x: Tensor) -> Tensor:
    y = net.bare(net.first(net.samples(x)))
    return functional.batch_norm(y, net.norm.running_mean, net.norm.running_var, net.norm.weight, net.norm.bias)


def by_name(net: Net, x: Tensor) -> Tensor:
    y = functional.conv2d(input=x, weight=net.first.weight, bias=net.first.bias)
    return functional.conv2d(y, weight=net.second.weight, bias=net.second.bias, stride=2)


def in_another_order(net: Net, x: Tensor) -> Tensor:
    """The same function, whose branches are computed in turns, the one or the other first."""
    branches = [lambda: net.norm(net.first(x)).relu(), lambda: functional.max_pool2d(net.beside(x), 1)]
    turn = net.passes % 2
    one, two = branches[turn](), branches[1 - turn]()
    wide, narrow = (two, one) if turn else (one, two)
    return torch.cat([wide.flatten(1), narrow.flatten(1)], 1)


def alike_in_another_order(net: Net, x: Tensor) -> Tensor:
    """Branches of one form: nothing but the weights tells them apart."""
    y = net.first(x)
    branches = [lambda: net.second(y).relu(), lambda: net.third(y).relu()]
    turn = net.passes % 2
    one, two = branches[turn](), branches[1 - turn]()
    return torch.cat([two, one] if turn else [one, two], 1)


def more_the_second_time(net: Net, x: Tensor) -> Tensor:
    y = net.first(x).relu()
    return y if net.passes % 2 else 2 * y - net.first(x).relu()


MIDDLES = [
    in_place_after_a_product,
    in_place_without_its_result,
    overwritten,
    used_twice,
    overlapping_windows,
    other_norms,
    by_name,
    in_another_order,
    alike_in_another_order,
    more_the_second_time,
]


def samples(seed: int = 0) -> Tensor:
    return torch.randn(N, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(middle: Callable[[Net, Tensor], Tensor]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(middle).double()
        net(samples())
        for weight in (net.norm.weight, net.norm.bias):
            nn.init.normal_(weight)
    net.passes = 0
    return net.train()


def direction(theta: Theta) -> Theta:
    g = torch.Generator().manual_seed(1)
    return {name: torch.randn(weight.shape, dtype=weight.dtype, generator=g) for name, weight in theta.items()}


def tangent(net: nn.Module, x: Tensor, theta: Theta, products: Products | None) -> tuple[Tensor, Tensor]:
    along = direction(theta)
    with torch.no_grad(), forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(weight.detach(), along[name]) for name, weight in theta.items()}
        return forward_ad.unpack_dual(forward(net, x, dual, seed=3, update_statistics=False, products=products))


def check(net: nn.Module, x: Tensor) -> Products:
    """A pass under products, then one with tangents, against the same two without; afterwards the graph is whole."""
    theta, products = trainable(net), Products()
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    z = forward(net, x, theta, seed=3, update_statistics=True, products=products)
    after = {name: buffer.clone() for name, buffer in net.named_buffers()}
    recalled = tangent(net, x, theta, products)
    by_theta = gradients(z.square().sum(), theta)

    net.load_state_dict(buffers, strict=False)
    plain = forward(net, x, theta, seed=3, update_statistics=True)
    assert torch.equal(z, plain)
    for name, buffer in net.named_buffers():
        assert torch.equal(after[name], buffer), name
    for ours, theirs in zip(recalled, tangent(net, x, theta, None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for name, by_weight in gradients(plain.square().sum(), theta).items():
        torch.testing.assert_close(by_theta[name], by_weight, rtol=1e-12, atol=1e-12)
    return products


@pytest.mark.parametrize("name", NETWORKS)
def test_the_tangent_is_that_of_plain_forward_mode(name: str) -> None:
    assert not check(make(name).train(), samples()).calls  # nothing outlives its use


@pytest.mark.parametrize("middle", MIDDLES)
def test_so_it_is_for_unusual_networks(middle: Callable[[Net, Tensor], Tensor]) -> None:
    check(network(middle), samples())


@pytest.mark.parametrize("frozen", ["0.weight", "1.weight", "1.bias", "5.weight"])
def test_so_it_is_with_frozen_weights(frozen: str) -> None:
    net = make("conv").train()
    net.get_parameter(frozen).requires_grad_(False)
    check(net, samples())


def test_so_it_is_in_channels_last_and_in_eval_mode() -> None:
    check(make("conv").train(), samples().contiguous(memory_format=torch.channels_last))
    check(make("conv").eval(), samples())


class Counted(TorchDispatchMode):
    """How often each operator ran, normalisation by new statistics apart."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.count["statistics" if name == "native_batch_norm" and args[5] else name] += 1
        return func(*args, **(kwargs or {}))


def test_only_tangents_are_computed() -> None:
    """Two products a layer, and one for the first, whose input has no tangent."""
    net, x = make("conv").train(), samples()
    theta, products = trainable(net), Products()
    forward(net, x, theta, seed=3, update_statistics=True, products=products)
    with Counted() as with_products:
        tangent(net, x, theta, products)
    with Counted() as without:
        tangent(net, x, theta, None)
    names = ("convolution", "relu", "max_pool2d_with_indices", "statistics")
    assert [with_products.count[name] for name in names] == [1, 0, 0, 0]
    assert all(without.count[name] > with_products.count[name] for name in names)
    assert with_products.count["mm"] + with_products.count["addmm"] == 2


@pytest.mark.parametrize("low", [False, True])
def test_a_pass_with_other_weights_is_left_alone(low: bool) -> None:
    """In bfloat16 too, where the weights that are multiplied are copies."""
    net, x = make("conv").float().train(), samples().float()
    theta, products = trainable(net), Products()
    moved = {name: weight.detach() + 0.1 for name, weight in theta.items()}
    with low_precision(on=low):
        forward(net, x, theta, seed=3, update_statistics=False, products=products)
        ours = forward(net, x, moved, seed=3, update_statistics=False, products=products)
        assert torch.equal(ours, forward(net, x, moved, seed=3, update_statistics=False))


def test_batch_norm_of_one_number_is_refused_as_ever() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(128, 4), nn.BatchNorm1d(4)).double()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        forward(net, samples()[:1], trainable(net), seed=3, update_statistics=True, products=Products())


def test_forward_mode_is_imported_before_the_first_step() -> None:
    """What it leaves in memory would otherwise lie between the activations for good."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore');"
        "from metalabelnet.core.meta_gradient import MetaGradient; name = 'torch._decomp.decompositions_for_jvp';"
        "MetaGradient('double-backward'); before = name in sys.modules; MetaGradient('exact');"
        "print(before, name in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True"]
