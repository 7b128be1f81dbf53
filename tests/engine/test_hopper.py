"""3×3 convolutions by a kernel of our own: what can be held without a card, and the kernel itself on one."""

from __future__ import annotations

import dataclasses
import re
from operator import getitem
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import batch_norm, conv2d, conv_transpose2d, cross_entropy

from metalabelnet.core.forward_ad_cache import ForwardADCache, make_dual, unpack_dual
from metalabelnet.core.forward_pass import forward, mixed_precision, mixed_precision_context, trainable_parameters
from metalabelnet.engine import hopper
from metalabelnet.engine.hopper import conv3x3, wgrad3x3
from metalabelnet.engine.hopper.tiling import RESERVED, SHARED, compiles, product, shared_out, source
from metalabelnet.engine.rewrites.operators import Operators

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = [  # height, width, inputs, outputs
    (32, 32, 64, 64),
    (32, 32, 8, 64),
    (16, 16, 64, 128),
    (16, 16, 128, 64),
    (16, 16, 128, 128),
    (8, 8, 128, 200),
    (8, 8, 200, 128),
    (8, 8, 200, 200),
    (56, 56, 64, 64),
    (24, 40, 72, 24),
    (8, 16, 16, 8),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_plan_fits_the_card_and_covers_the_layer(layer: tuple[int, int, int, int]) -> None:
    """Shared memory is enough, tiles cover the image, and blocks the outputs."""
    way = conv3x3.plan(*layer)
    assert way is not None
    assert way.beside * (way.shared + RESERVED) <= SHARED + RESERVED
    assert layer[0] % way.rows == 0
    assert layer[1] % way.columns == 0
    assert way.block * way.blocks >= layer[3]
    assert way.block % 8 == 0
    assert way.wide(128, 132) * way.blocks <= 132 * way.beside


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_plan_for_weights_fits_the_card_and_covers_the_layer(layer: tuple[int, int, int, int], joined: bool) -> None:
    """The same for the gradient by weights; registers of three warpgroups are enough."""
    way = wgrad3x3.plan(*layer, joined=joined)
    assert way is not None
    assert way.shared <= SHARED
    assert (layer[0] % way.rows, layer[1] % way.columns) == (0, 0)
    assert way.parts(128, 132) * way.blocks <= 132
    assert way.blocks * 64 * way.block >= layer[2] * layer[3]
    assert way.block <= 72


@pytest.mark.parametrize(("name", "count"), [("conv3x3", 13), ("grad3x3", 9)])
def test_a_kernel_is_asked_for_with_as_many_numbers_as_it_has(name: str, count: int) -> None:
    """Those of the plan, and for the convolution whether it adds another, and what then."""
    text = source(name, product(64, a_turned=False, b_turned=True))
    assert "m64n64k16" in text
    (arguments,) = re.findall(r"template <([^>]*)>\n__global__", text)
    assert len(arguments.split(",")) == count
    plan = dataclasses.fields(conv3x3.Plan if name == "conv3x3" else wgrad3x3.Plan)
    assert count == len(plan) + 2 * (name == "conv3x3")


def test_what_is_done_with_an_output_has_the_same_names_on_both_sides() -> None:
    (names,) = re.findall(r"enum \{([^}]*)\}", source("conv3x3", product(64, a_turned=False, b_turned=False)))
    assert [getattr(conv3x3, name.strip()) for name in names.split(",")] == list(range(5))


def test_a_kernel_that_cannot_be_made_is_left_to_the_library() -> None:
    def make() -> object:
        raise ImportError

    assert compiles(object)
    assert not compiles(make)


def test_work_is_shared_out_evenly() -> None:
    """As few blocks as need no turn more than the most would."""
    assert shared_out(512, 132) == 128
    assert shared_out(100, 132) == 100
    assert shared_out(133, 132) == 67


@pytest.mark.parametrize("layer", [(28, 28, 64, 64), (32, 32, 3, 64), (32, 32, 64, 60), (7, 7, 512, 512)])
def test_other_layers_are_left_to_the_library(layer: tuple[int, int, int, int]) -> None:
    """Sides and channels that are no multiples of eight, and more channels than there is room for."""
    assert conv3x3.plan(*layer) is None
    assert wgrad3x3.plan(*layer) is None


def test_no_other_convolution_is_taken() -> None:
    """On a CPU none at all."""
    x, weight = torch.zeros(1, 64, 8, 8, dtype=torch.bfloat16), torch.zeros(64, 64, 3, 3, dtype=torch.bfloat16)
    assert not hopper.takes(x, weight, [1, 1], [1, 1], [1, 1], back=False)


def test_totals_nobody_reads_are_not_added_up() -> None:
    """A recording says for each convolution whether they are wanted."""
    operator = torch.ops.metalabelnet.conv3x3.default
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    rest = x, w, None, None
    one = graph.call_function(operator, (x, w, 132, 8, True, *rest))
    two = graph.call_function(operator, (x, w, 132, 8, True, *rest))
    taken = [graph.call_function(getitem, (one, 0)), graph.call_function(getitem, (two, 0))]
    graph.output((*taken, graph.call_function(getitem, (two, 1))))
    hopper.without_idle_totals(graph)
    assert one.args == (x, w, 132, 8, False, *rest)
    assert two.args == (x, w, 132, 8, True, *rest)


def _convolve(way: conv3x3.Plan, _: torch.device, plus: bool, then: int) -> object:
    """PyTorch in the place of one kernel."""

    def run(grid: tuple[int, int], threads: int, x: Tensor, w: Tensor, y: Tensor, sums: Tensor, *more: Any) -> None:
        added, other, slope, at_zero, images = more
        assert threads == way.groups * 128
        assert grid[1] == way.blocks
        assert images == len(x) == len(y)
        assert (plus, then in (2, 3), then > 2) == tuple(t is not None for t in (added, other, slope))
        weight = w.unflatten(1, (3, 3)).permute(0, 3, 1, 2).float()[:, : x.shape[3]]
        convolved = conv2d(x.permute(0, 3, 1, 2).float(), weight, padding=1)
        y.copy_(convolved if then < 4 else (convolved * slope.view(-1, 1, 1) + at_zero.view(-1, 1, 1)).relu())
        if plus:
            y.add_(added)
        if then == 3:
            y.mul_(other.float() * slope.view(-1, 1, 1) + at_zero.view(-1, 1, 1) > 0)
        assert len(sums) == (grid[0] if 0 < then < 4 else 0)
        if len(sums):
            sums.copy_(torch.stack(_sums(y, other, slope, at_zero)) / len(sums))

    return run


@pytest.fixture
def without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the kernels: in their place PyTorch, on a CPU, on the tensors they are given."""

    def takes_any(x: Tensor, weight: Tensor, *around: list[int]) -> bool:
        return x.dtype == torch.bfloat16 and weight.shape[2:] == (3, 3) and all({*numbers} == {1} for numbers in around)

    def weigh(way: wgrad3x3.Plan, _: torch.device) -> object:
        def run(grid: tuple[int, int], threads: int, x: Tensor, grad: Tensor, other: Tensor, *rest: Any) -> None:
            numbers, parts, images = rest
            assert (grid, threads) == ((len(parts), way.blocks), 384)
            assert way.joined == (numbers is not None)
            grad = (numbers[0] * grad + numbers[1] * other + numbers[2]).to(grad) if way.joined else grad
            assert images == len(x) == len(grad)
            shape = grad.shape[3], x.shape[3], 3, 3
            x, grad = x.permute(0, 3, 1, 2).float(), grad.permute(0, 3, 1, 2).float()
            found = torch.nn.grad.conv2d_weight(x, shape, grad, padding=1)
            parts.copy_(found.permute(2, 3, 0, 1).flatten().expand_as(parts) / len(parts))

        return run

    def add_up(_: torch.device) -> object:
        def run(grid: tuple[int, int], threads: int, parts: Tensor, total: Tensor, count: int, size: int) -> None:
            assert grid[0] * threads // 2 >= size
            assert parts.shape == (count, size)
            total.copy_(parts.sum(0).view_as(total))

        return run

    for module in (conv3x3, wgrad3x3):
        monkeypatch.setattr(module, "of_this_kind", takes_any)
        monkeypatch.setattr(module, "_works", lambda *_: True)
        monkeypatch.setattr(module, "processors", lambda _: 132)
        monkeypatch.setattr(module, "boxes", lambda x, _: x)
    monkeypatch.setattr(conv3x3, "_kernel", _convolve)
    monkeypatch.setattr(wgrad3x3, "_kernel", weigh)
    monkeypatch.setattr(wgrad3x3, "_add_up", add_up)


@pytest.mark.usefixtures("without_a_card")
def test_what_goes_to_the_kernels_and_what_comes_back() -> None:
    """With PyTorch in their place: the convolution, its totals, the way back, the gradient by weights."""
    x, grad = torch.randn(3, 72, 8, 8).bfloat16(), torch.randn(3, 24, 8, 8).bfloat16()
    weight = torch.randn(24, 72, 3, 3).bfloat16()
    made = hopper.convolution(x, weight)
    assert _near(made.y, conv2d(x.float(), weight.float(), padding=1))
    for found, true in zip(made.totals(24), _sums(made.y, None, None, None), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-2)
    assert _near(hopper.back(grad, weight).y, conv_transpose2d(grad.float(), weight.float(), padding=1))
    true = torch.nn.grad.conv2d_weight(x.float(), weight.shape, grad.float(), padding=1)
    torch.testing.assert_close(hopper.by_weight(x, grad), true, rtol=1e-4, atol=1e-3)


def _net() -> nn.Sequential:
    """A layer of 20 (not by the eight), BatchNorm, pooling; for images of three channels."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 20, 3, padding=1),
        nn.BatchNorm2d(20),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 64, 5),
    )
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.BatchNorm2d):  # lines that are not all alike
                layer.weight.copy_(torch.linspace(0.7, 1.5, len(layer.weight)))
                layer.weight[3] *= -1
                layer.bias.copy_(torch.linspace(0.3, -0.3, len(layer.bias)))
    return net


WEIGHS = torch.ops.metalabelnet.grad3x3.default
IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def _recorded(step: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> tuple[list[fx.Node], tuple[Tensor, ...]]:
    """The calls of our convolution in a recording, and what comes of it."""
    table = Operators(tensor_cores=True).table
    recording = make_fx(step, decomposition_table=table, tracing_mode="real")(*args)
    recording.graph.eliminate_dead_code()
    hopper.without_idle_totals(recording.graph)
    recording.recompile()
    assert not any(node.target is torch.ops.aten.convolution.default for node in recording.graph.nodes)
    with torch.no_grad():
        result = recording(*args)
    calls = [node for node in recording.graph.nodes if node.target is torch.ops.metalabelnet.conv3x3.default]
    return calls, result


def _about(node: fx.Node) -> tuple[bool, ...]:
    """Whether a convolution sums squares, adds another, sums products or has a line."""
    return (node.args[4], *(node.args[i] is not None for i in (5, 6, 7)))


def _as_near(ours: Tensor, theirs: Tensor, exact: Tensor) -> bool:
    """As near as the way in bfloat16 that is not recorded."""
    return bool((ours - exact).norm() <= 1.3 * (theirs - exact).norm() + 0.01 * exact.norm() + 1e-3)


@pytest.mark.usefixtures("without_a_card")
def test_a_recorded_step_is_the_same_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and every gradient; on the way back the kernel sums what BatchNorm asks for.

    BatchNorm's gradient goes on to the weights alone in the first layer, and is made there.
    """
    net, x, y = _net(), IMAGES.contiguous(memory_format=torch.channels_last), torch.arange(8) % 5
    weights = list(net.parameters())

    def plain(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision_context():
            loss = cross_entropy(net(x).float(), y)
        return loss.detach(), *torch.autograd.grad(loss, weights)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision(enabled=True):
            return plain(x, y)

    calls, recorded = _recorded(step, x, y)
    convolves, back = (True, False, False, False), (False, False, True, True)
    assert [_about(call) for call in calls] == [convolves] * 3 + [back] * 2
    for ours, theirs, exact in zip(recorded, step(x, y), plain(x, y), strict=True):
        assert _as_near(ours, theirs, exact)
    assert sum(call.args[3] is not None for call in calls[0].graph.find_nodes(op="call_function", target=WEIGHS)) == 1
    monkeypatch.setattr(Operators, "_anew", lambda *_: None)
    calls, summed_apart = _recorded(step, x, y)
    assert not any(call.args[6] for call in calls)
    for ours, theirs in zip(recorded, summed_apart, strict=True):  # but for numbers that are rounded the other way
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm() + 1e-5


class _Branches(nn.Module):
    """Two ways that part and meet: what comes back to where they part is a sum, and no one convolution's."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (way(x) for way in self.ways)
        return torch.relu(first + second)


@pytest.mark.usefixtures("without_a_card")
@pytest.mark.parametrize(("runs", "processors"), [(1, 132), (2, 66), (8, 33)])
def test_in_company_a_kernel_takes_a_part_of_the_card(runs: int, processors: int) -> None:
    """There and back: autograd goes back on a thread of its own, where a card is. What comes of it stays the same."""
    x, weight = IMAGES[:, :1].expand(8, 16, 16, 16).bfloat16(), torch.randn(16, 16, 3, 3, requires_grad=True)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        y = batch_norm(conv2d(x, weight.bfloat16(), padding=1).float(), None, None, training=True)
        return torch.autograd.grad(y.square().sum() + y[0].sum(), weight)

    table = Operators(tensor_cores=True).table
    recording = make_fx(step, decomposition_table=table, tracing_mode="real")(x)
    recording.graph.eliminate_dead_code()
    hopper.in_company(recording, runs)
    ours = torch.ops.metalabelnet.conv3x3.default, WEIGHS
    assert [node.args[2] for node in recording.graph.nodes if node.target in ours] == [processors] * 2
    (found,), (true,) = recording(x), step(x)
    assert (found - true).norm() <= 0.02 * true.norm()


@pytest.mark.usefixtures("without_a_card")
def test_branches_that_part_and_meet_are_the_same_with_them() -> None:
    """A residual block, and two convolutions of the same activations: every gradient."""
    torch.manual_seed(0)

    def way(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]

    block = _Branches(nn.Sequential(*way(16, 16), nn.ReLU(), *way(16, 16)), nn.Identity())
    fork = _Branches(nn.Sequential(*way(16, 24)), nn.Sequential(*way(16, 24)))
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)
    net = nn.Sequential(*way(3, 16), nn.ReLU(), block, *way(16, 16), nn.ReLU(), fork, *head)
    weights = list(net.parameters())

    def plain(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision_context():
            loss = cross_entropy(net(x).float(), torch.arange(8) % 5)
        return torch.autograd.grad(loss, weights)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision(enabled=True):
            return plain(x)

    x = IMAGES.contiguous(memory_format=torch.channels_last)
    calls, recorded = _recorded(step, x)
    summed = [call for call in calls if call.args[6] is not None]
    assert summed  # within the block, at least
    for ours, theirs, exact in zip(recorded, step(x), plain(x), strict=True):
        assert _as_near(ours, theirs, exact)


@pytest.mark.usefixtures("without_a_card")
def test_a_recorded_tangent_is_the_same_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two products adds the first, and sums what BatchNorm asks for."""
    net, x = _net(), IMAGES.contiguous(memory_format=torch.channels_last)
    theta = trainable_parameters(net)
    g = torch.Generator().manual_seed(1)
    directions = {name: torch.randn(weight.shape, generator=g) for name, weight in theta.items()}

    def plain(x: Tensor) -> tuple[Tensor, ...]:
        cache, same = ForwardADCache(), {"seed": 0, "update_statistics": False}
        logits = forward(net, x, theta, **same, cache=cache)
        with forward_ad.dual_level():
            duals = {name: make_dual(weight, directions[name]) for name, weight in theta.items()}
            tangents = unpack_dual(forward(net, x, duals, **same, cache=cache)).tangent
        return logits.detach(), tangents.detach()

    def step(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision(enabled=True):
            return plain(x)

    calls, recorded = _recorded(step, x)
    summed, added = (False, False, True, False), (False, True, True, False)
    assert [_about(call) for call in calls if call.args[6] is not None] == [summed, added, added]  # images stay
    for ours, theirs, exact in zip(recorded, step(x), plain(x), strict=True):
        assert _as_near(ours, theirs, exact)
    monkeypatch.setattr(Operators, "_add_line", lambda *_: NotImplemented)
    _, two_lines = _recorded(step, x)
    torch.testing.assert_close(recorded, two_lines, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("without_a_card")
def test_a_recorded_prediction_is_the_same_with_them() -> None:
    """With statistics that are there the convolution gives what comes out of BatchNorm and ReLU."""
    net, x = _net(), IMAGES.contiguous(memory_format=torch.channels_last)
    net(x)
    net.eval()

    def plain(x: Tensor) -> tuple[Tensor]:
        with mixed_precision_context(), torch.no_grad():
            return (net(x).float(),)

    def step(x: Tensor) -> tuple[Tensor]:
        with mixed_precision(enabled=True):
            return plain(x)

    calls, (ours,) = _recorded(step, x)
    assert [_about(call) for call in calls] == [(False, False, False, True)] * 3
    assert _as_near(ours, step(x)[0], plain(x)[0])


@pytest.fixture(params=[132, 33])
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """Random numbers on a card of this kind; kernels take all of it, or a quarter."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("a card of another kind")
    for module in (conv3x3, wgrad3x3):
        monkeypatch.setattr(module, "processors", lambda _: request.param)
    return torch.Generator("cuda").manual_seed(0)


def _draw(card: torch.Generator, *shape: int) -> Tensor:
    numbers = torch.randn(*shape, device="cuda", generator=card).bfloat16()
    return numbers.contiguous(memory_format=torch.channels_last)


def _near(found: Tensor, true: Tensor) -> bool:
    """The same but for the rounding of what comes out."""
    return torch.allclose(found.float(), true.float(), rtol=2**-8, atol=1e-3 * true.abs().max().item())


def _sums(y: Tensor, other: Tensor | None, slope: Tensor | None, at_zero: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the kernel adds up, over all pixels."""
    y = y.float()
    with_other = y if other is None else other.float()
    if slope is not None and at_zero is not None:
        y = y * (with_other * slope.view(-1, 1, 1) + at_zero.view(-1, 1, 1) > 0)
    return y.sum((0, 2, 3)), (y * with_other).sum((0, 2, 3))


AROUND = [1, 1], [1, 1], [1, 1]  # stride, padding, dilation


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_kernel_convolves(card: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """As PyTorch does in float32; totals are those of what it gives."""
    height, width, inputs, outputs = layer
    x, weight = _draw(card, images, inputs, height, width), _draw(card, outputs, inputs, 3, 3)
    assert hopper.takes(x, weight, *AROUND, back=False)
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = conv2d(x.float(), weight.float(), padding=1)
    for _ in range(2):
        y, sums, *_ = hopper.convolution(x, weight)
        assert _near(y, true)
        total, squares = sums.double().sum(0)
        size = y.double().abs().sum((0, 2, 3)).max().item()
        assert torch.allclose(total, y.double().sum((0, 2, 3)), rtol=0, atol=1e-5 * size)
        assert torch.allclose(squares, y.double().square().sum((0, 2, 3)), rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_kernel_goes_back(card: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """The gradient by what went in, as PyTorch finds it in float32."""
    height, width, outputs, inputs = layer
    grad, weight = _draw(card, images, outputs, height, width), _draw(card, outputs, inputs, 3, 3)
    assert hopper.takes(grad, weight, *AROUND, back=True)
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = conv_transpose2d(grad.float(), weight.float(), padding=1)
    for _ in range(2):
        assert _near(hopper.back(grad, weight).y, true)


@pytest.mark.gpu
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_what_the_kernel_adds_and_adds_up(card: torch.Generator, layer: tuple[int, int, int, int], back: bool) -> None:
    """Another tensor; products with a third, in all places or where a line is positive."""
    height, width, inputs, outputs = layer
    if back:
        made = hopper.back(_draw(card, 37, outputs, height, width), _draw(card, outputs, inputs, 3, 3))
    else:
        made = hopper.convolution(_draw(card, 37, inputs, height, width), _draw(card, outputs, inputs, 3, 3))
    plus, other = (30 * _draw(card, *made.y.shape) for _ in range(2))
    slope, at_zero = (_draw(card, made.y.shape[1], 1, 1, 1).float().flatten() for _ in range(2))
    both = made.again(plus=plus)
    assert _near(both.y, made.y.float() + plus.float())
    line = hopper.Line(other, slope, at_zero)
    with torch.backends.cudnn.flags(allow_tf32=False):
        exact = conv2d(made.x.float(), made.weight[:, : made.x.shape[1]].float(), padding=1)
    rectified = (exact * slope.view(-1, 1, 1) + at_zero.view(-1, 1, 1)).relu()
    assert _near(made.rectified(slope, at_zero), rectified)
    positive = other.float() * slope.view(-1, 1, 1) + at_zero.view(-1, 1, 1) > 0
    for found, along in ((both.again(other=other), ()), (both.again(positive=line), (slope, at_zero))):
        assert torch.equal(found.y, both.y * positive if along else both.y)
        true = _sums(both.y.double(), other, *(along or (None, None)))
        sizes = _sums(both.y.double().abs(), other.abs(), None, None)
        for ours, theirs, size in zip(found.totals(made.y.shape[1]), true, sizes, strict=True):
            assert torch.allclose(ours.double(), theirs.double(), rtol=0, atol=1e-5 * size.max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_kernel_finds_the_gradient_by_weights(
    card: torch.Generator, layer: tuple[int, int, int, int], images: int
) -> None:
    """As PyTorch does in float32."""
    height, width, inputs, outputs = layer
    x, grad = _draw(card, images, inputs, height, width), _draw(card, images, outputs, height, width)
    weight = _draw(card, outputs, inputs, 3, 3)
    if not hopper.takes_by_weight(x, weight, *AROUND):
        pytest.skip("left to the library")
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = torch.nn.grad.conv2d_weight(x.float(), weight.shape, grad.float(), padding=1)
    for _ in range(2):
        found = hopper.by_weight(x, grad)
        assert torch.allclose(found, true, rtol=1e-4, atol=1e-4 * true.abs().max().item())
    other = _draw(card, *grad.shape)
    numbers = [_draw(card, outputs, 1, 1, 1).float().flatten() for _ in range(3)]
    by_channel = [each.view(-1, 1, 1) for each in numbers]
    joined = (by_channel[0] * grad + by_channel[1] * other + by_channel[2]).bfloat16()
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = torch.nn.grad.conv2d_weight(x.float(), weight.shape, joined.float(), padding=1)
    for _ in range(2):
        found = hopper.by_weight(x, grad, hopper.Joined(grad, other, *numbers))
        assert torch.allclose(found, true, rtol=1e-3, atol=1e-3 * true.abs().max().item())
