"""Hopper kernels: launch configurations and graph rewrites without a GPU, and the kernels themselves on one."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
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
from metalabelnet.engine.hopper import HopperKernels, conv3x3, hopper_kernels, wgrad3x3
from metalabelnet.engine.hopper.tiling import (
    MAX_SHARED_BYTES,
    RESERVED_SHARED_BYTES,
    balanced_ctas,
    compile_failure,
    kernel_source,
    wgmma_source,
)
from metalabelnet.engine.kernel_selection import select_kernels
from metalabelnet.engine.kernels import AffineGrad, ChannelAffine
from metalabelnet.engine.rewrites import additions
from metalabelnet.engine.rewrites.operators import OperatorRewrites
from metalabelnet.errors import InputError
from metalabelnet.nets.resnet import PreActResNet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAYERS = [  # height, width, input channels, output channels
    (32, 32, 64, 64),
    (32, 32, 8, 64),
    (16, 16, 64, 128),
    (16, 16, 128, 64),
    (16, 16, 128, 128),
    (8, 8, 128, 200),
    (8, 8, 200, 128),
    (8, 8, 200, 200),
    (8, 8, 256, 256),
    (56, 56, 64, 64),
    (24, 40, 72, 24),
    (8, 16, 16, 8),
]
KERNELS = HopperKernels()
GEOMETRY = [1, 1], [1, 1], [1, 1]  # stride, padding, dilation
CONV_OPERATOR = torch.ops.metalabelnet.conv3x3.default
WGRAD_OPERATOR = torch.ops.metalabelnet.wgrad3x3.default


@pytest.mark.parametrize("layer", LAYERS)
def test_conv_plan_fits_shared_memory_and_covers_the_layer(layer: tuple[int, int, int, int]) -> None:
    plan = conv3x3.make_conv_plan(*layer)
    assert plan is not None
    per_cta = plan.shared_bytes + RESERVED_SHARED_BYTES
    assert plan.ctas_per_sm * per_cta <= MAX_SHARED_BYTES + RESERVED_SHARED_BYTES
    assert layer[0] % plan.tile_rows == 0
    assert layer[1] % plan.tile_columns == 0
    assert plan.block_out * plan.channel_blocks >= layer[3]
    assert plan.block_out % 8 == 0
    assert plan.pixel_splits(128, 132) * plan.channel_blocks <= 132 * plan.ctas_per_sm


@pytest.mark.parametrize("affine_grad", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_wgrad_plan_fits_and_covers_the_layer(layer: tuple[int, int, int, int], affine_grad: bool) -> None:
    plan = wgrad3x3.make_wgrad_plan(*layer, affine_grad=affine_grad)
    assert plan is not None
    assert plan.shared_bytes <= MAX_SHARED_BYTES
    assert (layer[0] % plan.tile_rows, layer[1] % plan.tile_columns) == (0, 0)
    assert plan.pixel_splits(128, 132) * plan.weight_blocks <= 132
    assert plan.weight_blocks * 64 * plan.block_in >= layer[2] * layer[3]
    assert plan.block_in <= 72  # registers of three warpgroups


@pytest.mark.parametrize(("name", "count"), [("conv3x3", 13), ("wgrad3x3", 9)])
def test_template_arguments_match_the_plan(name: str, count: int) -> None:
    """The fields of the plan and, for conv3x3, whether it adds a tensor, and the epilogue."""
    source = kernel_source(name, wgmma_source(64, transpose_a=False, transpose_b=True))
    assert "m64n64k16" in source
    (parameters,) = re.findall(r"template <([^>]*)>\n__global__", source)
    assert len(parameters.split(",")) == count
    fields = dataclasses.fields(conv3x3.ConvPlan if name == "conv3x3" else wgrad3x3.WgradPlan)
    assert count == len(fields) + 2 * (name == "conv3x3")
    assert re.search(rf"\b{name}\(", source)


def test_epilogues_have_the_same_names_in_python_and_cuda() -> None:
    source = kernel_source("conv3x3", wgmma_source(64, transpose_a=False, transpose_b=False))
    (names,) = re.findall(r"enum \{([^}]*)\}", source)
    assert [getattr(conv3x3, name.strip()) for name in names.split(",")] == list(range(5))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("layer", LAYERS)
def test_kernels_compile(layer: tuple[int, int, int, int], tmp_path: Path) -> None:
    """With nvcc, which needs no GPU: every epilogue of forward and dgrad, and both kinds of wgrad."""
    height, width, in_channels, out_channels = layer
    flags = ["-arch=sm_90a", "-std=c++17", "-cubin"]
    for number, channels in enumerate({(in_channels, out_channels), (out_channels, in_channels)}):
        plan = conv3x3.make_conv_plan(height, width, *channels)
        assert plan is not None
        arguments = ", ".join(map(str, dataclasses.astuple(plan)))
        uses = [f"(const void*)conv3x3<{arguments}, {add}, {e}>" for add in (0, 1) for e in range(5)]
        wgmma = wgmma_source(plan.block_out, transpose_a=False, transpose_b=False)
        source = kernel_source("conv3x3", wgmma) + f"\nconst void* used[] = {{{', '.join(uses)}}};\n"
        (tmp_path / f"conv{number}.cu").write_text(source)
        subprocess.run(["nvcc", *flags, f"conv{number}.cu"], cwd=tmp_path, check=True)
    for affine_grad in (False, True):
        wgrad_plan = wgrad3x3.make_wgrad_plan(*layer, affine_grad=affine_grad)
        assert wgrad_plan is not None
        arguments = ", ".join(str(int(argument)) for argument in dataclasses.astuple(wgrad_plan))
        wgmma = wgmma_source(wgrad_plan.block_in, transpose_a=True, transpose_b=True)
        uses = [f"(const void*)wgrad3x3<{arguments}>", "(const void*)sum_partials"]
        source = kernel_source("wgrad3x3", wgmma) + f"\nconst void* used[] = {{{', '.join(uses)}}};\n"
        (tmp_path / "wgrad.cu").write_text(source)
        subprocess.run(["nvcc", *flags, "wgrad.cu"], cwd=tmp_path, check=True)


def test_compile_failure_returns_the_reason() -> None:
    def fail() -> object:
        raise ImportError("no NVRTC")

    assert compile_failure(object) is None
    assert compile_failure(fail) == "no NVRTC"


def test_work_is_balanced() -> None:
    """As few CTAs as need no more rounds than the maximum number of CTAs would."""
    assert balanced_ctas(512, 132) == 128
    assert balanced_ctas(100, 132) == 100
    assert balanced_ctas(133, 132) == 67


@pytest.mark.parametrize("layer", [(28, 28, 64, 64), (32, 32, 3, 64), (32, 32, 64, 60), (7, 7, 512, 512)])
def test_unsupported_sizes_have_no_plan(layer: tuple[int, int, int, int]) -> None:
    """Sides and channels that are not multiples of eight, and more channels than fit."""
    assert conv3x3.make_conv_plan(*layer) is None
    assert wgrad3x3.make_wgrad_plan(*layer) is None


def test_hopper_kernels_are_selected_on_a_hopper_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for choice in ("auto", "hopper"):
        kernels = select_kernels(choice, torch.device("cuda", 0), bf16=True)
        assert isinstance(kernels, HopperKernels)
        assert kernels.strict == (choice == "hopper")


def test_no_layer_is_supported_on_a_cpu() -> None:
    x, weight = torch.zeros(1, 64, 8, 8, dtype=torch.bfloat16), torch.zeros(64, 64, 3, 3, dtype=torch.bfloat16)
    assert not KERNELS.supports_forward(x, weight, *GEOMETRY)
    assert not KERNELS.supports_dgrad(x, weight, *GEOMETRY)
    assert not KERNELS.supports_wgrad(x, weight, *GEOMETRY)


def test_kernel_that_does_not_compile_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are left to cuDNN; in strict mode it is an error."""
    monkeypatch.setattr(hopper_kernels, "is_supported_layer", lambda *_: True)
    monkeypatch.setattr(hopper_kernels, "conv_compile_failure", lambda *_: "no NVRTC")
    x, weight = torch.zeros(1, 64, 8, 8), torch.zeros(64, 64, 3, 3)
    kernels = HopperKernels()
    assert not kernels.supports_forward(x, weight, *GEOMETRY)
    assert not kernels.supports_dgrad(x, weight, *GEOMETRY)
    assert kernels.failures == ["Hopper kernels cannot be compiled (no NVRTC)"]
    with pytest.raises(InputError, match="no NVRTC"):
        HopperKernels(strict=True).supports_forward(x, weight, *GEOMETRY)


def test_sums_that_nothing_reads_are_dropped() -> None:
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    rest = x, w, None, None
    one = graph.call_function(CONV_OPERATOR, (x, w, 132, 8, True, *rest))
    two = graph.call_function(CONV_OPERATOR, (x, w, 132, 8, True, *rest))
    outputs = [graph.call_function(getitem, (one, 0)), graph.call_function(getitem, (two, 0))]
    graph.output((*outputs, graph.call_function(getitem, (two, 1))))
    conv3x3.drop_unused_sums(graph)
    assert one.args == (x, w, 132, 8, False, *rest)
    assert two.args == (x, w, 132, 8, True, *rest)


def _emulate_conv(plan: conv3x3.ConvPlan, _: torch.device, has_addend: bool, epilogue: int) -> object:
    """The conv3x3 kernel in PyTorch, on the tensors it is launched with."""

    def launch(grid: tuple[int, int], threads: int, x: Tensor, w: Tensor, y: Tensor, sums: Tensor, *rest: Any) -> None:
        addend, factor, scale, shift, images = rest
        assert threads == plan.warpgroups * 128
        assert grid[1] == plan.channel_blocks
        assert images == len(x) == len(y)
        assert (has_addend, epilogue in (2, 3), epilogue > 2) == tuple(t is not None for t in (addend, factor, scale))
        weight = w.unflatten(1, (3, 3)).permute(0, 3, 1, 2).float()[:, : x.shape[3]]
        output = conv2d(x.permute(0, 3, 1, 2).float(), weight, padding=1)
        y.copy_(output if epilogue < 4 else (output * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)).relu())
        if has_addend:
            y.add_(addend)
        if epilogue == 3:
            y.mul_(factor.float() * scale.view(-1, 1, 1) + shift.view(-1, 1, 1) > 0)
        assert len(sums) == (grid[0] if 0 < epilogue < 4 else 0)
        if len(sums):
            sums.copy_(torch.stack(_expected_sums(y, factor, scale, shift)) / len(sums))

    return launch


def _emulate_wgrad(plan: wgrad3x3.WgradPlan, _: torch.device) -> object:
    """The wgrad3x3 kernel in PyTorch."""

    def launch(grid: tuple[int, int], threads: int, x: Tensor, grad: Tensor, other: Tensor, *rest: Any) -> None:
        coefficients, partial, images = rest
        assert (grid, threads) == ((len(partial), plan.weight_blocks), 384)
        assert plan.affine_grad == (coefficients is not None)
        if plan.affine_grad:
            grad = (coefficients[0] * grad + coefficients[1] * other + coefficients[2]).to(grad)
        assert images == len(x) == len(grad)
        shape = grad.shape[3], x.shape[3], 3, 3
        x, grad = x.permute(0, 3, 1, 2).float(), grad.permute(0, 3, 1, 2).float()
        wgrad = torch.nn.grad.conv2d_weight(x, shape, grad, padding=1)
        partial.copy_(wgrad.permute(2, 3, 0, 1).flatten().expand_as(partial) / len(partial))

    return launch


def _emulate_reduction(_: torch.device) -> object:
    """The sum_partials kernel in PyTorch."""

    def launch(grid: tuple[int, int], threads: int, partial: Tensor, total: Tensor, count: int, size: int) -> None:
        assert grid[0] * threads // 2 >= size
        assert partial.shape == (count, size)
        total.copy_(partial.sum(0).view_as(total))

    return launch


@pytest.fixture
def emulated_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the kernels, which are emulated in PyTorch on a CPU."""

    def is_supported_layer(x: Tensor, weight: Tensor, *geometry: list[int]) -> bool:
        all_ones = all({*numbers} == {1} for numbers in geometry)
        return x.dtype == torch.bfloat16 and weight.shape[2:] == (3, 3) and all_ones

    monkeypatch.setattr(hopper_kernels, "is_supported_layer", is_supported_layer)
    monkeypatch.setattr(hopper_kernels, "conv_compile_failure", lambda *_: None)
    monkeypatch.setattr(hopper_kernels, "wgrad_compile_failure", lambda *_: None)
    for module in (conv3x3, wgrad3x3):
        monkeypatch.setattr(module, "sm_count", lambda _: 132)
        monkeypatch.setattr(module, "make_tensor_map", lambda x, _: x)
    monkeypatch.setattr(conv3x3, "_get_kernel", _emulate_conv)
    monkeypatch.setattr(wgrad3x3, "_get_kernel", _emulate_wgrad)
    monkeypatch.setattr(wgrad3x3, "_get_reduction_kernel", _emulate_reduction)


@pytest.mark.usefixtures("emulated_kernels")
def test_operators_launch_the_kernels_correctly() -> None:
    """Forward with its sums, dgrad and wgrad, with emulated kernels."""
    x, grad = torch.randn(3, 72, 8, 8).bfloat16(), torch.randn(3, 24, 8, 8).bfloat16()
    weight = torch.randn(24, 72, 3, 3).bfloat16()
    result = KERNELS.forward(x, weight)
    assert _is_close(result.y, conv2d(x.float(), weight.float(), padding=1))
    for actual, expected in zip(result.channel_sums(24), _expected_sums(result.y, None, None, None), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-2)
    assert _is_close(KERNELS.dgrad(grad, weight).y, conv_transpose2d(grad.float(), weight.float(), padding=1))
    expected = torch.nn.grad.conv2d_weight(x.float(), weight.shape, grad.float(), padding=1)
    torch.testing.assert_close(KERNELS.wgrad(x, grad), expected, rtol=1e-4, atol=1e-3)


def _net() -> nn.Sequential:
    """A network for images of three channels with a layer of 20 channels (no multiple of 8), BatchNorm and pooling."""
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
            if isinstance(layer, nn.BatchNorm2d):  # different scales and shifts, one scale negative
                layer.weight.copy_(torch.linspace(0.7, 1.5, len(layer.weight)))
                layer.weight[3] *= -1
                layer.bias.copy_(torch.linspace(0.3, -0.3, len(layer.bias)))
    return net


IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def _make_graph(step: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> fx.GraphModule:
    table = OperatorRewrites(rewrite_convolutions=True, kernels=KERNELS).table
    module = make_fx(step, decomposition_table=table, tracing_mode="real")(*args)
    module.graph.eliminate_dead_code()
    return module


def _trace(step: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> tuple[list[fx.Node], tuple[Tensor, ...]]:
    """The calls of conv3x3 in the traced step, and its results."""
    module = _make_graph(step, *args)
    KERNELS.finalize(module.graph, concurrent_runs=1)
    module.recompile()
    assert KERNELS.used_in(module)
    assert not any(node.target is torch.ops.aten.convolution.default for node in module.graph.nodes)
    with torch.no_grad():
        results = module(*args)
    return [node for node in module.graph.nodes if node.target is CONV_OPERATOR], results


def _in_bfloat16(step: Callable[[Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def mixed_step(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision(enabled=True):
            return step(x)

    return mixed_step


def _tangent_step(net: nn.Module) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return a step that computes logits and their tangents in a random direction of the weights."""
    theta = trainable_parameters(net)
    g = torch.Generator().manual_seed(1)
    directions = {name: torch.randn(weight.shape, generator=g) for name, weight in theta.items()}

    def step(x: Tensor) -> tuple[Tensor, ...]:
        cache, same = ForwardADCache(), {"seed": 0, "update_statistics": False}
        logits = forward(net, x, theta, **same, cache=cache)
        with forward_ad.dual_level():
            duals = {name: make_dual(weight, directions[name]) for name, weight in theta.items()}
            tangents = unpack_dual(forward(net, x, duals, **same, cache=cache)).tangent
        return logits.detach(), tangents.detach()

    return step


def _prediction_step(net: nn.Module, x: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return a step that predicts with BatchNorm statistics updated by x."""
    net(x)
    net.eval()

    def step(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision_context(), torch.no_grad():
            return (net(x).float(),)

    return step


def _options(node: fx.Node) -> tuple[bool, ...]:
    """Whether a call sums squares, adds a tensor, sums products, has scale and shift."""
    return (node.args[4], *(node.args[i] is not None for i in (5, 6, 7)))


def _is_as_close_as_eager(actual: Tensor, eager: Tensor, exact: Tensor) -> bool:
    """Whether a result is as close to float32 as the eager step in bfloat16."""
    return bool((actual - exact).norm() <= 1.3 * (eager - exact).norm() + 0.01 * exact.norm() + 1e-3)


@pytest.mark.usefixtures("emulated_kernels")
def test_traced_step_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and every gradient are right; dgrad sums in its epilogue what BatchNorm needs.

    In the first layer BatchNorm's gradient is read by wgrad only, which computes it while loading.
    """
    net, x, y = _net(), IMAGES.contiguous(memory_format=torch.channels_last), torch.arange(8) % 5
    weights = list(net.parameters())

    def float32_step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision_context():
            loss = cross_entropy(net(x).float(), y)
        return loss.detach(), *torch.autograd.grad(loss, weights)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision(enabled=True):
            return float32_step(x, y)

    calls, results = _trace(step, x, y)
    forward_call, dgrad_call = (True, False, False, False), (False, False, True, True)
    assert [_options(call) for call in calls] == [forward_call] * 3 + [dgrad_call] * 2
    for actual, eager, exact in zip(results, step(x, y), float32_step(x, y), strict=True):
        assert _is_as_close_as_eager(actual, eager, exact)
    wgrad_calls = calls[0].graph.find_nodes(op="call_function", target=WGRAD_OPERATOR)
    assert sum(call.args[3] is not None for call in wgrad_calls) == 1
    monkeypatch.setattr(OperatorRewrites, "_grad_with_sums", lambda *_: None)
    calls, without_epilogue = _trace(step, x, y)
    assert not any(call.args[6] for call in calls)
    for actual, expected in zip(results, without_epilogue, strict=True):  # the same up to rounding
        assert (actual - expected).norm() <= 1e-3 * expected.norm() + 1e-5


class _Branches(nn.Module):
    """Two branches that are added: the gradient of their input is a sum, and not the output of one dgrad kernel."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (branch(x) for branch in self.branches)
        return torch.relu(first + second)


@pytest.mark.usefixtures("emulated_kernels")
@pytest.mark.parametrize(("runs", "sms"), [(1, 132), (2, 66), (8, 33)])
def test_concurrent_runs_use_a_share_of_the_sms(runs: int, sms: int) -> None:
    """In the forward and the backward pass, with the same result."""
    x, weight = IMAGES[:, :1].expand(8, 16, 16, 16).bfloat16(), torch.randn(16, 16, 3, 3, requires_grad=True)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        y = batch_norm(conv2d(x, weight.bfloat16(), padding=1).float(), None, None, training=True)
        return torch.autograd.grad(y.square().sum() + y[0].sum(), weight)

    module = _make_graph(step, x)
    KERNELS.finalize(module.graph, concurrent_runs=runs)
    module.recompile()
    operators = CONV_OPERATOR, WGRAD_OPERATOR
    assert [node.args[2] for node in module.graph.nodes if node.target in operators] == [sms] * 2
    (actual,), (expected,) = module(x), step(x)
    assert (actual - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.usefixtures("emulated_kernels")
def test_branches_are_traced_correctly() -> None:
    """A residual block, and two convolutions of the same activations: every gradient."""
    torch.manual_seed(0)

    def conv_norm(in_channels: int, out_channels: int) -> list[nn.Module]:
        return [nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels)]

    block = _Branches(nn.Sequential(*conv_norm(16, 16), nn.ReLU(), *conv_norm(16, 16)), nn.Identity())
    fork = _Branches(nn.Sequential(*conv_norm(16, 24)), nn.Sequential(*conv_norm(16, 24)))
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)
    net = nn.Sequential(*conv_norm(3, 16), nn.ReLU(), block, *conv_norm(16, 16), nn.ReLU(), fork, *head)
    weights = list(net.parameters())

    def float32_step(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision_context():
            loss = cross_entropy(net(x).float(), torch.arange(8) % 5)
        return torch.autograd.grad(loss, weights)

    step = _in_bfloat16(float32_step)

    x = IMAGES.contiguous(memory_format=torch.channels_last)
    calls, results = _trace(step, x)
    assert [call for call in calls if call.args[6] is not None]  # at least inside the block
    for actual, eager, exact in zip(results, step(x), float32_step(x), strict=True):
        assert _is_as_close_as_eager(actual, eager, exact)


def _preact_net(*depths: int, final_norm: bool = True) -> PreActResNet:
    """Blocks of 16 channels with an identity as their shortcut, and one of 24 channels with a convolution."""
    torch.manual_seed(0)
    net = PreActResNet((3, 8, 8), 5, stem=16, widths=(16, 24)[: len(depths)], depths=depths, final_norm=final_norm)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.copy_(torch.linspace(0.7, 1.5, len(layer.weight)))
                layer.bias.copy_(torch.linspace(0.3, -0.3, len(layer.bias)))
    return net


@pytest.mark.usefixtures("emulated_kernels")
@pytest.mark.parametrize("final_norm", [True, False])
def test_residual_blocks_are_fused(final_norm: bool) -> None:
    """The second kernel of a block adds the shortcut, and sums what the next BatchNorm needs; gradients are right.

    The first convolution of the last block has stride 2 and is cuDNN's; the dgrad kernel behind it reads its output.
    """
    net, x = _preact_net(1, 1, final_norm=final_norm), IMAGES[:2].contiguous(memory_format=torch.channels_last)
    weights = list(net.parameters())

    def float32_step(x: Tensor) -> tuple[Tensor, ...]:
        with mixed_precision_context():
            loss = cross_entropy(net(x).float(), torch.arange(2))
        return loss.detach(), *torch.autograd.grad(loss, weights)

    step = _in_bfloat16(float32_step)

    module = _make_graph(step, x)
    KERNELS.finalize(module.graph, concurrent_runs=1)
    module.recompile()
    calls = [node for node in module.graph.nodes if node.target is CONV_OPERATOR]
    first, second, dgrad = (True, False, False, False), (True, True, False, False), (False, False, True, True)
    last = second if final_norm else (False, True, False, False)
    assert [_options(call) for call in calls] == [first, first, second, last] + [dgrad] * 3
    with torch.no_grad():
        results = module(x)
    for actual, eager, exact in zip(results, step(x), float32_step(x), strict=True):
        assert _is_as_close_as_eager(actual, eager, exact)


@pytest.mark.usefixtures("emulated_kernels")
def test_tangents_of_residual_blocks_are_fused() -> None:
    """Of a tangent's two convolutions, the first adds the shortcut's tangent, and the second adds the first."""
    net, x = _preact_net(1), IMAGES[:2, :, ::2, ::2].contiguous(memory_format=torch.channels_last)
    float32_step = _tangent_step(net)
    step = _in_bfloat16(float32_step)

    calls, results = _trace(step, x)
    sums, adds_and_sums = (False, False, True, False), (False, True, True, False)
    assert [_options(call) for call in calls if call.args[6] is not None] == [sums] + [adds_and_sums] * 2
    addends = [call.args[5].args[0] for call in calls if _options(call) == adds_and_sums]
    assert [_options(addend)[1] for addend in addends] == [False, True]
    for actual, eager, exact in zip(results, step(x), float32_step(x), strict=True):
        assert _is_as_close_as_eager(actual, eager, exact)


@pytest.mark.usefixtures("emulated_kernels")
def test_predictions_of_residual_blocks() -> None:
    """BatchNorm with fixed statistics and ReLU are in the first kernel of a block; the sum of a block is stored.

    The stem's kernel is called twice: for the first block's BatchNorm and for its shortcut.
    """
    net, x = _preact_net(2), IMAGES[:4, :, ::2, ::2].contiguous(memory_format=torch.channels_last)
    float32_step = _prediction_step(net, x)
    step = _in_bfloat16(float32_step)

    calls, (logits,) = _trace(step, x)
    first, second = (False, False, False, True), (False, True, False, False)
    assert [_options(call) for call in calls] == [(False,) * 4, first] + [first, second] * 2
    assert _is_as_close_as_eager(logits, step(x)[0], float32_step(x)[0])


@pytest.mark.usefixtures("emulated_kernels")
def test_traced_tangent_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of a tangent's two convolutions adds the first, and sums what BatchNorm needs."""
    net, x = _net(), IMAGES.contiguous(memory_format=torch.channels_last)
    float32_step = _tangent_step(net)
    step = _in_bfloat16(float32_step)

    calls, results = _trace(step, x)
    sums, adds_and_sums = (False, False, True, False), (False, True, True, False)
    # Images have no tangent: the first layer has one convolution.
    assert [_options(call) for call in calls if call.args[6] is not None] == [sums, adds_and_sums, adds_and_sums]
    for actual, eager, exact in zip(results, step(x), float32_step(x), strict=True):
        assert _is_as_close_as_eager(actual, eager, exact)
    monkeypatch.setattr(additions, "_add_affine", lambda *_: NotImplemented)
    _, not_merged = _trace(step, x)
    torch.testing.assert_close(results, not_merged, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("emulated_kernels")
def test_traced_prediction_fuses_batch_norm_and_relu() -> None:
    """With fixed statistics, they are in the convolution's epilogue."""
    net, x = _net(), IMAGES.contiguous(memory_format=torch.channels_last)
    float32_step = _prediction_step(net, x)
    step = _in_bfloat16(float32_step)

    calls, (logits,) = _trace(step, x)
    assert [_options(call) for call in calls] == [(False, False, False, True)] * 3
    assert _is_as_close_as_eager(logits, step(x)[0], float32_step(x)[0])


@pytest.fixture(params=[132, 33])
def generator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """Random numbers on a Hopper GPU; kernels use all SMs, or a quarter."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    for module in (conv3x3, wgrad3x3):
        monkeypatch.setattr(module, "sm_count", lambda _: request.param)
    return torch.Generator("cuda").manual_seed(0)


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    values = torch.randn(*shape, device="cuda", generator=generator).bfloat16()
    return values.contiguous(memory_format=torch.channels_last)


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    """Whether values are equal up to the rounding of the output."""
    return torch.allclose(actual.float(), expected.float(), rtol=2**-8, atol=1e-3 * expected.abs().max().item())


def _expected_sums(
    y: Tensor, factor: Tensor | None, scale: Tensor | None, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the epilogue sums, over all pixels."""
    y = y.float()
    factor = y if factor is None else factor.float()
    if scale is not None and shift is not None:
        y = y * (factor * scale.view(-1, 1, 1) + shift.view(-1, 1, 1) > 0)
    return y.sum((0, 2, 3)), (y * factor).sum((0, 2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_forward_kernel(generator: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """As PyTorch in float32; the sums are those of the output."""
    height, width, in_channels, out_channels = layer
    x, weight = (
        _random(generator, images, in_channels, height, width),
        _random(generator, out_channels, in_channels, 3, 3),
    )
    assert KERNELS.supports_forward(x, weight, *GEOMETRY)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = conv2d(x.float(), weight.float(), padding=1)
    for _ in range(2):
        y, partial_sums, *_ = KERNELS.forward(x, weight)
        assert _is_close(y, expected)
        total, squares = partial_sums.double().sum(0)
        size = y.double().abs().sum((0, 2, 3)).max().item()
        assert torch.allclose(total, y.double().sum((0, 2, 3)), rtol=0, atol=1e-5 * size)
        assert torch.allclose(squares, y.double().square().sum((0, 2, 3)), rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_dgrad_kernel(generator: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """As PyTorch in float32."""
    height, width, out_channels, in_channels = layer
    grad = _random(generator, images, out_channels, height, width)
    weight = _random(generator, out_channels, in_channels, 3, 3)
    assert KERNELS.supports_dgrad(grad, weight, *GEOMETRY)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = conv_transpose2d(grad.float(), weight.float(), padding=1)
    for _ in range(2):
        assert _is_close(KERNELS.dgrad(grad, weight).y, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_epilogues(generator: torch.Generator, layer: tuple[int, int, int, int], backward: bool) -> None:
    """An addition; sums of products, over all pixels or where an affine function is positive; affine and ReLU."""
    height, width, in_channels, out_channels = layer
    weight = _random(generator, out_channels, in_channels, 3, 3)
    if backward:
        result = KERNELS.dgrad(_random(generator, 37, out_channels, height, width), weight)
    else:
        result = KERNELS.forward(_random(generator, 37, in_channels, height, width), weight)
    addend, factor = (30 * _random(generator, *result.y.shape) for _ in range(2))
    scale, shift = (_random(generator, result.y.shape[1], 1, 1, 1).float().flatten() for _ in range(2))
    added = result.add(addend)
    assert _is_close(added.y, result.y.float() + addend.float())
    mask = ChannelAffine(factor, scale, shift)
    with torch.backends.cudnn.flags(allow_tf32=False):
        exact = conv2d(result.x.float(), result.weight[:, : result.x.shape[1]].float(), padding=1)
    expected = (exact * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)).relu()
    assert _is_close(result.affine_relu(scale, shift), expected)
    positive = factor.float() * scale.view(-1, 1, 1) + shift.view(-1, 1, 1) > 0
    for reissued, affine in ((added.reissue(factor=factor), ()), (added.reissue(relu_mask=mask), (scale, shift))):
        assert torch.equal(reissued.y, added.y * positive if affine else added.y)
        sums = _expected_sums(added.y.double(), factor, *(affine or (None, None)))
        sizes = _expected_sums(added.y.double().abs(), factor.abs(), None, None)
        for actual, wanted, size in zip(reissued.channel_sums(result.y.shape[1]), sums, sizes, strict=True):
            assert torch.allclose(actual.double(), wanted.double(), rtol=0, atol=1e-5 * size.max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_wgrad_kernel(generator: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """As PyTorch in float32, from a gradient and from an affine combination."""
    height, width, in_channels, out_channels = layer
    x, grad = (_random(generator, images, channels, height, width) for channels in (in_channels, out_channels))
    weight = _random(generator, out_channels, in_channels, 3, 3)
    if not KERNELS.supports_wgrad(x, weight, *GEOMETRY):
        pytest.skip("left to cuDNN")
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = torch.nn.grad.conv2d_weight(x.float(), weight.shape, grad.float(), padding=1)
    for _ in range(2):
        wgrad = KERNELS.wgrad(x, grad)
        assert torch.allclose(wgrad, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    other = _random(generator, *grad.shape)
    coefficients = [_random(generator, out_channels, 1, 1, 1).float().flatten() for _ in range(3)]
    a, b, c = (each.view(-1, 1, 1) for each in coefficients)
    combined = (a * grad + b * other + c).bfloat16()
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = torch.nn.grad.conv2d_weight(x.float(), weight.shape, combined.float(), padding=1)
    for _ in range(2):
        wgrad = KERNELS.wgrad(x, grad, AffineGrad(grad, other, *coefficients))
        assert torch.allclose(wgrad, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
