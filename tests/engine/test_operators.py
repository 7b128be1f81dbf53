"""Rewritten operators compute what PyTorch's operators compute: values, and gradients by autograd."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from metalabelnet.core.forward_ad_cache import make_dual, unpack_dual
from metalabelnet.engine.kernels import NoKernels
from metalabelnet.engine.rewrites.batch_norm import batch_norm_train
from metalabelnet.engine.rewrites.operators import OperatorRewrites
from metalabelnet.engine.tensor_facts import TensorFacts


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def trace(f: Callable[..., object], *args: Tensor, rewrite_convolutions: bool = True) -> fx.GraphModule:
    table = OperatorRewrites(rewrite_convolutions=rewrite_convolutions, kernels=NoKernels()).table
    return make_fx(f, decomposition_table=table, tracing_mode="real")(*args)


def with_gradients(f: Callable[..., Tensor], requires_grad: list[bool]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of the value and the gradients of a fixed combination of it with respect to its arguments."""

    def both(*args: Tensor) -> tuple[Tensor, ...]:
        args = tuple(arg.detach().requires_grad_(needed) for arg, needed in zip(args, requires_grad, strict=True))
        y = f(*args)
        weights = torch.arange(y.numel(), dtype=y.dtype).sin().view(y.shape)
        return y.detach(), *torch.autograd.grad((y * weights).sum(), [arg for arg in args if arg.requires_grad])

    return both


def check_rewrite(
    f: Callable[..., Tensor],
    *args: Tensor,
    requires_grad: list[bool],
    absent: str = "",
    present: str = "",
    tolerance: float = 1e-11,
) -> str:
    """Check the traced function's values and gradients, and which operators are in its code; return the code."""
    both = with_gradients(f, requires_grad)
    expected = both(*args)
    traced = trace(both, *args)
    for actual, wanted in zip(traced(*args), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)
    assert not absent or absent not in traced.code
    assert present in traced.code
    return str(traced.code)


@pytest.mark.parametrize(("in_channels", "out_channels"), [(16, 13), (13, 16), (5, 6)])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_are_padded_to_multiples_of_8(in_channels: int, out_channels: int, stride: int) -> None:
    weight = random_tensor(out_channels, in_channels, 3, 3)
    check_rewrite(
        lambda x, w, b: functional.conv2d(x, w, b, padding=1, stride=stride),
        *(random_tensor(3, in_channels, 8, 8), weight, random_tensor(out_channels)),
        requires_grad=[True] * 3,
        present="constant_pad_nd",
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (7, 2, 3), (5, 3, 0), ((3, 5), (2, 1), (0, 2))])
def test_convolution_of_images_is_a_matrix_product(
    channels: int, kernel: object, stride: object, padding: object
) -> None:
    height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    check_rewrite(
        lambda x, w, b: functional.conv2d(x, w, b, stride=stride, padding=padding),
        *(random_tensor(2, channels, 9, 12), random_tensor(8, channels, height, width), random_tensor(8)),
        requires_grad=[False, True, True],
        absent="convolution",
    )


def test_1d_dilated_and_grouped_convolutions_are_not_rewritten() -> None:
    args = random_tensor(2, 3, 9), random_tensor(4, 3, 3), random_tensor(4)
    check_rewrite(functional.conv1d, *args, requires_grad=[True] * 3)
    dilated = lambda x, w, b: functional.conv2d(x, w, b, dilation=2)  # noqa: E731
    args = random_tensor(2, 3, 9, 9), random_tensor(8, 3, 3, 3), random_tensor(8)
    check_rewrite(dilated, *args, requires_grad=[False, True, True], present="convolution")
    grouped = lambda x, w, b: functional.conv2d(x, w, b, groups=2)  # noqa: E731
    args = random_tensor(2, 6, 9, 9), random_tensor(10, 3, 3, 3), random_tensor(10)
    check_rewrite(grouped, *args, requires_grad=[True] * 3, absent="constant_pad_nd")


@pytest.mark.parametrize("size", [2, 3, (2, 3)])
def test_max_pool_backward_does_not_scatter(size: object) -> None:
    x = random_tensor(2, 3, 6, 12)
    x[0, 0, :2, :2] = x[0, 0, 0, 0]  # among equals the first is the maximum
    pool = lambda x: functional.max_pool2d(x, size)  # noqa: E731
    check_rewrite(pool, x, requires_grad=[True], absent="max_pool2d_with_indices_backward")


@pytest.mark.parametrize("option", [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}])
def test_overlapping_max_pool_is_not_rewritten(option: dict[str, object]) -> None:
    pool = lambda x: functional.max_pool2d(x, 2, **option)  # noqa: E731
    check_rewrite(pool, random_tensor(2, 3, 5, 5), requires_grad=[True], present="indices_backward")


@pytest.mark.parametrize("cast", [False, True])
def test_bias_before_batch_norm_has_no_gradient(cast: bool) -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = functional.conv2d(x, w, b, padding=1)
        y = y.to(torch.float32).to(torch.float64) if cast else y
        return functional.batch_norm(y, None, None, training=True)

    args = random_tensor(4, 8, 6, 6), random_tensor(8, 8, 3, 3), random_tensor(8)
    code = check_rewrite(layer, *args, requires_grad=[True] * 3, tolerance=1e-6 if cast else 1e-11)
    assert code.count(".sum.dim_IntList") == 2  # both belong to BatchNorm


def test_bias_before_batch_norm_with_fixed_statistics_has_a_gradient() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = functional.conv2d(x, w, b, padding=1)
        return functional.batch_norm(y, torch.zeros(8).double(), torch.ones(8).double(), training=False)

    args = random_tensor(4, 8, 6, 6), random_tensor(8, 8, 3, 3), random_tensor(8)
    check_rewrite(layer, *args, requires_grad=[True] * 3, present=".sum.dim_IntList")


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(6, 8, 4, 5), (6, 8)])
def test_batch_norm_values_gradients_and_running_statistics(
    shape: tuple[int, ...], training: bool, affine: bool
) -> None:
    running = [random_tensor(8), random_tensor(8).abs() + 0.5]

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, var = (tensor.clone() for tensor in running)
        parameters = {"weight": w, "bias": b} if affine else {}
        y = functional.batch_norm(x, mean, var, **parameters, training=training, momentum=0.3, eps=1e-3)
        return torch.cat([y.reshape(-1), mean, var]) + 0 * (w + b).sum()

    args = 3 + 2 * random_tensor(*shape), random_tensor(8), random_tensor(8)
    check_rewrite(layer, *args, requires_grad=[True] * 3, absent="native_batch_norm.default")


def test_batch_norm_reads_the_convolution_without_its_bias() -> None:
    """The running mean still includes the bias."""

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, var = torch.zeros(8).double(), torch.ones(8).double()
        y = functional.batch_norm(functional.conv2d(x, w, b), mean, var, training=True)
        return torch.cat([y.reshape(-1), mean, var])

    args = random_tensor(4, 8, 6, 6), random_tensor(8, 8, 3, 3), 100 + random_tensor(8)
    code = check_rewrite(layer, *args, requires_grad=[True] * 3)
    inputs = re.findall(r"aten.select.int\((\w+), 0, 0\)", code)  # the first value of each channel
    assert inputs
    assert all(name.startswith("convolution") for name in inputs)


def test_batch_norm_is_precise_for_means_far_from_zero() -> None:
    """In float32, a standard deviation of 1 with a mean of 10,000: sums of squares would be off by ten."""
    x = (1e4 + random_tensor(64, 8, 6, 6)).float()

    def layer(x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, training=True)

    traced = trace(layer, x, rewrite_convolutions=False)
    assert "native_batch_norm" not in traced.code
    assert (traced(x).double() - layer(x.double())).abs().max() < 1e-3  # x itself is rounded to 1e-3


def test_batch_norm_uses_given_sums() -> None:
    x, weight, bias = random_tensor(6, 8, 4, 4), random_tensor(8), random_tensor(1, 8)[0]
    sums = x.sum((0, 2, 3)), x.square().sum((0, 2, 3))
    with_sums, without = batch_norm_train(x, weight, bias, 1e-5, sums), batch_norm_train(x, weight, bias, 1e-5)
    for actual, expected in zip(with_sums, without, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_backward_sums_over_pooled_windows(channels_last: bool) -> None:
    x = random_tensor(2, 8, 6, 6)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x

    def layers(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.batch_norm(x, None, None, weight, bias, training=True)
        return functional.max_pool2d(y.relu(), 2)

    args = x, random_tensor(8), random_tensor(1, 8)[0]
    check_rewrite(layers, *args, requires_grad=[True] * 3, absent="native_batch_norm")

    def gradients(*args: Tensor) -> tuple[Tensor, ...]:
        inputs = [t.detach().requires_grad_() for t in args]
        return torch.autograd.grad(layers(*inputs).sum(), inputs)

    traced = trace(gradients, *args)
    sums = [node for node in traced.graph.nodes if node.target is torch.ops.aten.sum.dim_IntList]
    assert sums
    assert all(node.args[0].meta["val"].shape[2:] == (3, 3) for node in sums)


def test_pooled_tangent_is_not_copied() -> None:
    """Forward mode flattens a tangent, which would copy it if it is in channels last."""
    x, tangent = (random_tensor(n, 8, 4, 6)[:2].contiguous(memory_format=torch.channels_last) for n in (2, 3))

    def pool(x: Tensor, tangent: Tensor) -> Tensor:
        with forward_ad.dual_level():
            x_tangent = unpack_dual(make_dual(x, tangent)).tangent
            _, indices = functional.max_pool2d_with_indices(x, 2)
            pooled: Tensor = x_tangent.flatten(-2).gather(-1, indices.flatten(-2)).view_as(indices)
            return pooled

    traced = trace(pool, x, tangent)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    assert torch.equal(traced(x, tangent), pool(x, tangent))
    assert "gather" not in traced.code
    assert "clone" not in traced.code


def test_relu_backward_does_not_read_an_overwritten_input() -> None:
    def layer(x: Tensor) -> Tensor:
        y = x * 2
        z = y.relu()
        y.zero_()
        return z * 1

    check_rewrite(layer, random_tensor(3, 4), requires_grad=[True])


def test_facts_are_found_by_memory_shape_and_version() -> None:
    facts = TensorFacts()
    x = torch.arange(6.0)
    facts[x] = "six"
    assert facts.get(x.detach()) == "six"
    assert facts.get(x[:3]) is None
    assert facts.get(x.view(2, 3)) is None
    x.add_(1)
    assert facts.get(x) is None


def test_fact_is_dropped_when_a_tensor_it_holds_is_written_to() -> None:
    facts = TensorFacts()
    x, held = torch.zeros(3), torch.zeros(3)
    facts[x] = {"parts": (held, [None])}
    assert facts.get(x) is not None
    held.add_(1)
    assert facts.get(x) is None


def test_fact_set_after_write_holds_until_the_next_write() -> None:
    facts = TensorFacts()
    x = torch.zeros(3)
    facts.set_after_write(x, "ones")
    assert facts.get(x) is None
    x.add_(1)
    assert facts.get(x) == "ones"
    x.add_(1)
    assert facts.get(x) is None
