"""Operators written another way give what PyTorch's give: values, and gradients by autograd."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from metalabelnet.core.forward_ad_cache import make_dual, unpack_dual
from metalabelnet.engine.rewrites.batch_norm import batch_norm
from metalabelnet.engine.rewrites.operators import Operators
from metalabelnet.engine.tensor_facts import Known


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def with_gradients(f: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The value, and the gradient of a fixed combination of its numbers by each argument that asks for one."""

    def both(*args: Tensor) -> tuple[Tensor, ...]:
        args = tuple(arg.detach().requires_grad_(asks) for arg, asks in zip(args, wants, strict=True))
        y = f(*args)
        weights = torch.arange(y.numel(), dtype=y.dtype).sin().view(y.shape)
        return y.detach(), *torch.autograd.grad((y * weights).sum(), [arg for arg in args if arg.requires_grad])

    wants: list[bool] = []
    both.wants = wants  # type: ignore[attr-defined]
    return both


def check(
    f: Callable[..., Tensor], *args: Tensor, wants: list[bool], gone: str, kept: str = "", near: float = 1e-11
) -> str:
    """Recorded in our words the function is the same, and an operator is (not) in it."""
    both = with_gradients(f)
    both.wants.extend(wants)  # type: ignore[attr-defined]
    expected = both(*args)
    recording = make_fx(both, decomposition_table=Operators(tensor_cores=True).table, tracing_mode="real")(*args)
    for ours, theirs in zip(recording(*args), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
    assert not gone or gone not in recording.code
    assert kept in recording.code
    return str(recording.code)


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 13), (13, 16), (5, 6)])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_are_padded_to_eights(inputs: int, outputs: int, stride: int) -> None:
    args = draw(3, inputs, 8, 8), draw(outputs, inputs, 3, 3), draw(outputs)
    check(
        lambda x, w, b: functional.conv2d(x, w, b, padding=1, stride=stride),
        *args,
        wants=[True] * 3,
        gone="",
        kept="constant_pad_nd",
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (7, 2, 3), (5, 3, 0), ((3, 5), (2, 1), (0, 2))])
def test_a_convolution_of_few_channels_is_a_product(
    channels: int, kernel: object, stride: object, padding: object
) -> None:
    high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    args = draw(2, channels, 9, 12), draw(8, channels, high, wide), draw(8)
    check(
        lambda x, w, b: functional.conv2d(x, w, b, stride=stride, padding=padding),
        *args,
        wants=[False, True, True],
        gone="convolution",
    )


def test_one_dimension_dilation_and_groups_stay_as_they_are() -> None:
    check(functional.conv1d, draw(2, 3, 9), draw(4, 3, 3), draw(4), wants=[True] * 3, gone="")
    dilated = lambda x, w, b: functional.conv2d(x, w, b, dilation=2)  # noqa: E731
    check(dilated, draw(2, 3, 9, 9), draw(8, 3, 3, 3), draw(8), wants=[False, True, True], gone="", kept="convolution")
    grouped = lambda x, w, b: functional.conv2d(x, w, b, groups=2)  # noqa: E731
    check(grouped, draw(2, 6, 9, 9), draw(10, 3, 3, 3), draw(10), wants=[True] * 3, gone="constant_pad_nd")


@pytest.mark.parametrize("size", [2, 3, (2, 3)])
def test_pooling_backwards_asks_every_pixel(size: object) -> None:
    x = draw(2, 3, 6, 12)
    x[0, 0, :2, :2] = x[0, 0, 0, 0]  # the first of equals is the largest
    check(lambda x: functional.max_pool2d(x, size), x, wants=[True], gone="max_pool2d_with_indices_backward")


@pytest.mark.parametrize("change", [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}])
def test_windows_that_overlap_are_left_to_pytorch(change: dict[str, object]) -> None:
    x = draw(2, 3, 5, 5)
    check(lambda x: functional.max_pool2d(x, 2, **change), x, wants=[True], gone="", kept="indices_backward")


@pytest.mark.parametrize("low", [False, True])
def test_a_bias_before_batch_norm_has_no_gradient(low: bool) -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = functional.conv2d(x, w, b, padding=1)
        y = y.to(torch.float32).to(torch.float64) if low else y
        return functional.batch_norm(y, None, None, training=True)

    near = 1e-6 if low else 1e-11
    code = check(layer, draw(4, 8, 6, 6), draw(8, 8, 3, 3), draw(8), wants=[True] * 3, gone="", near=near)
    assert code.count(".sum.dim_IntList") == 2  # both of BatchNorm's own


def test_before_batch_norm_with_fixed_statistics_it_has_one() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = functional.conv2d(x, w, b, padding=1)
        return functional.batch_norm(y, torch.zeros(8).double(), torch.ones(8).double(), training=False)

    check(layer, draw(4, 8, 6, 6), draw(8, 8, 3, 3), draw(8), wants=[True] * 3, gone="", kept=".sum.dim_IntList")


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(6, 8, 4, 5), (6, 8)])
def test_batch_norm_by_channels(shape: tuple[int, ...], training: bool, affine: bool) -> None:
    """Values, gradients and, in training, the running statistics."""
    running = [draw(8), draw(8).abs() + 0.5]

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, var = (tensor.clone() for tensor in running)
        scale = {"weight": w, "bias": b} if affine else {}
        y = functional.batch_norm(x, mean, var, **scale, training=training, momentum=0.3, eps=1e-3)
        return torch.cat([y.reshape(-1), mean, var]) + 0 * (w + b).sum()

    check(layer, 3 + 2 * draw(*shape), draw(8), draw(8), wants=[True] * 3, gone="native_batch_norm.default")


def test_batch_norm_reads_what_is_there_without_the_bias() -> None:
    """And its running mean still knows the bias."""

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, var = torch.zeros(8).double(), torch.ones(8).double()
        y = functional.batch_norm(functional.conv2d(x, w, b), mean, var, training=True)
        return torch.cat([y.reshape(-1), mean, var])

    code = check(layer, draw(4, 8, 6, 6), draw(8, 8, 3, 3), 100 + draw(8), wants=[True] * 3, gone="")
    read = re.findall(r"aten.select.int\((\w+), 0, 0\)", code)  # where the statistics begin
    assert read
    assert all(name.startswith("convolution") for name in read)


def test_means_far_from_zero_cost_no_digits() -> None:
    """In single precision, a deviation of 1 beside a mean of 10,000; squares of such numbers would be off by ten."""
    x = (1e4 + draw(64, 8, 6, 6)).float()

    def layer(x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, training=True)

    recording = make_fx(layer, decomposition_table=Operators(tensor_cores=False).table)(x)
    assert "native_batch_norm" not in recording.code
    assert (recording(x).double() - layer(x.double())).abs().max() < 1e-3  # x itself is rounded to 1e-3


def test_totals_that_are_there_serve() -> None:
    """Where a convolution has added up its outputs and their squares, BatchNorm's statistics are of those."""
    x, weight, bias = draw(6, 8, 4, 4), draw(8), draw(1, 8)[0]
    totals = x.sum((0, 2, 3)), x.square().sum((0, 2, 3))
    for ours, theirs in zip(batch_norm(x, weight, bias, 1e-5, totals), batch_norm(x, weight, bias, 1e-5), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("last", [False, True])
def test_behind_a_pooling_batch_norm_sums_over_windows(last: bool) -> None:
    """Its gradients are the same, with channels first or last."""
    x = draw(2, 8, 6, 6)
    x = x.contiguous(memory_format=torch.channels_last) if last else x

    def layers(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.batch_norm(x, None, None, weight, bias, training=True)
        return functional.max_pool2d(y.relu(), 2)

    check(layers, x, draw(8), draw(1, 8)[0], wants=[True] * 3, gone="native_batch_norm")

    def summed(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
        return torch.autograd.grad(layers(*inputs).sum(), inputs)

    recording = make_fx(summed, decomposition_table=Operators(tensor_cores=True).table, tracing_mode="real")(
        x, draw(8), draw(1, 8)[0]
    )
    sums = [node for node in recording.graph.nodes if node.target is torch.ops.aten.sum.dim_IntList]
    assert sums
    assert all(node.args[0].meta["val"].shape[2:] == (3, 3) for node in sums)


def test_a_pooled_tangent_is_read_where_its_channels_are() -> None:
    """With channels last: to lay it flat, as forward mode asks for, would copy all of it."""
    x, tangent = (draw(n, 8, 4, 6)[:2].contiguous(memory_format=torch.channels_last) for n in (2, 3))

    def pool(x: Tensor, tangent: Tensor) -> Tensor:
        with forward_ad.dual_level():
            of_x = unpack_dual(make_dual(x, tangent)).tangent
            _, which = functional.max_pool2d_with_indices(x, 2)
            found: Tensor = of_x.flatten(-2).gather(-1, which.flatten(-2)).view_as(which)
            return found

    recording = make_fx(pool, decomposition_table=Operators(tensor_cores=True).table, tracing_mode="real")(x, tangent)
    recording.graph.eliminate_dead_code()
    recording.recompile()
    assert torch.equal(recording(x, tangent), pool(x, tangent))
    assert "gather" not in recording.code
    assert "clone" not in recording.code


def test_what_was_written_into_is_no_longer_known() -> None:
    """A ReLU in place of its input: the backward pass must not ask the number that is gone."""

    def layer(x: Tensor) -> Tensor:
        y = x * 2
        z = y.relu()
        y.zero_()
        return z * 1

    check(layer, draw(3, 4), wants=[True], gone="")


def test_a_tensor_of_another_shape_at_the_same_place_is_another() -> None:
    known = Known()
    x = torch.arange(6.0)
    known[x] = "six"
    assert known.get(x.detach()) == "six"
    assert known.get(x[:3]) is None
    assert known.get(x.view(2, 3)) is None
    x.add_(1)
    assert known.get(x) is None


def test_what_an_operator_writes_is_known_when_it_is_through() -> None:
    """And no longer after another."""
    known = Known()
    x = torch.zeros(3)
    known.after_writing(x, "ones")
    assert known.get(x) is None
    x.add_(1)
    assert known.get(x) == "ones"
    x.add_(1)
    assert known.get(x) is None
