"""Forward and dgrad: the launch configuration of the kernel in `conv3x3.cu`, and an operator for traced graphs."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from metalabelnet.engine.hopper.nvrtc import Kernel, make_tensor_map
from metalabelnet.engine.hopper.tiling import (
    MAX_SHARED_BYTES,
    RESERVED_SHARED_BYTES,
    ROW_BYTES,
    are_multiples_of_8,
    balanced_ctas,
    channels_last,
    compile_failure,
    load_kernel,
    pad_to,
    sm_count,
    tile_bytes,
    wgmma_source,
)

if TYPE_CHECKING:
    from torch import fx

    from metalabelnet.engine.kernels import ChannelAffine

MAX_OUT_CHANNELS_PER_CTA = 208  # a warpgroup holds the accumulators in registers
STORE, SUM_SQUARES, SUM_PRODUCTS, SUM_MASKED_PRODUCTS, AFFINE_RELU = range(5)  # the kernel's epilogues
EPILOGUES_WITH_SUMS = (SUM_SQUARES, SUM_PRODUCTS, SUM_MASKED_PRODUCTS)
SUM_SQUARES_ARGUMENT = 4  # the position of `sum_squares` among the operator's arguments


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """Template arguments of the kernel for one layer, in their order; `conv3x3.cu` documents them."""

    height: int
    width: int
    in_channels: int
    out_channels: int
    block_out: int
    warpgroups: int
    tile_rows: int
    tile_columns: int
    weight_stages: int
    tile_stages: int
    ctas_per_sm: int

    @property
    def channel_blocks(self) -> int:
        """Blocks of the output channels, each computed by its own CTAs."""
        return -(-self.out_channels // self.block_out)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: tiles, weights, mbarriers, scales and shifts, sums of each warp, alignment."""
        tile = -(-self.in_channels // 64) * tile_bytes((self.tile_rows + 2) * (self.tile_columns + 2))
        tiles = self.warpgroups * self.tile_stages * tile
        weights = self.weight_stages * self.block_out * ROW_BYTES
        mbarriers = 2 * self.weight_stages + self.warpgroups * (1 + self.tile_stages)
        epilogue_values = (self.warpgroups * 4 + 1) * 2 * self.block_out
        return tiles + weights + 8 * mbarriers + 4 * epilogue_values + 1024 + 16

    def pixel_splits(self, images: int, sms: int) -> int:
        """Return how many CTAs share the pixels of one block of output channels."""
        tiles = images * (self.height // self.tile_rows) * (self.width // self.tile_columns)
        return balanced_ctas(-(-tiles // self.warpgroups), max(1, sms * self.ctas_per_sm // self.channel_blocks))


@functools.cache
def make_conv_plan(height: int, width: int, in_channels: int, out_channels: int) -> ConvPlan | None:
    """Return the configuration that was fastest in measurements, or None for an unsupported layer."""
    if not are_multiples_of_8(height, width, in_channels, out_channels):
        return None
    layer = height, width, in_channels, out_channels
    block = -(-out_channels // (8 * -(-out_channels // MAX_OUT_CHANNELS_PER_CTA))) * 8
    weight_parts = 9 * -(-in_channels // 64)
    candidates = []
    if block <= 128:  # all weights stay in shared memory
        choices = (4, 2), (2, 2), (2, 1)
        candidates += [ConvPlan(*layer, block, groups, 8, 8, weight_parts, tiles, 1) for groups, tiles in choices]
    is_wide = block <= 128 and width % 16 == 0
    if is_wide:  # two CTAs per SM: one stores while the other multiplies
        candidates += [ConvPlan(*layer, block, 1, 8, 16, 3, 1, 2)]
    groups, columns = (2, 16) if is_wide else (1, 8)
    candidates += [ConvPlan(*layer, block, groups, 8, columns, stages, 1, 1) for stages in (8, 7, 6, 5, 4)]
    return next((plan for plan in candidates if _fits(plan)), None)


def _fits(plan: ConvPlan) -> bool:
    per_cta = plan.shared_bytes + RESERVED_SHARED_BYTES
    return plan.ctas_per_sm * per_cta <= MAX_SHARED_BYTES + RESERVED_SHARED_BYTES


class HopperConvResult(NamedTuple):
    """The kernel's output and its operands (see `kernels.ConvResult`).

    `partial_sums` has the sums of the outputs, and of their squares or products, of each CTA: [CTAs, 2, channels].
    """

    y: Tensor
    partial_sums: Tensor
    x: Tensor
    weight: Tensor
    addend: Tensor | None

    def add(self, addend: Tensor) -> HopperConvResult:
        """Compute the convolution plus this addend, with the sums of the output and of its squares."""
        return _run(self.x, self.weight, self.y.shape[1], addend, sum_squares=True)

    def reissue(self, *, factor: Tensor | None = None, relu_mask: ChannelAffine | None = None) -> HopperConvResult:
        """Compute y again and, with a factor, the sums per channel of the output and of its product with the factor.

        With `relu_mask` the output is zero where that expression is not positive, and the factor is `relu_mask.x`.
        """
        channels = self.y.shape[1]
        if relu_mask is None:
            return _run(self.x, self.weight, channels, self.addend, factor)
        scale, shift = (pad_to(each, channels) for each in (relu_mask.scale, relu_mask.shift))
        return _run(self.x, self.weight, channels, self.addend, relu_mask.x, scale, shift)

    def affine_relu(self, scale: Tensor, shift: Tensor) -> Tensor:
        """Compute `relu(scale * y + shift)` instead of y, for a result without an addend."""
        assert self.addend is None
        channels = self.y.shape[1]
        scale, shift = (pad_to(each, channels) for each in (scale, shift))
        return _run(self.x, self.weight, channels, None, None, scale, shift).y

    def channel_sums(self, channels: int) -> tuple[Tensor, Tensor]:
        """Return the sums of the first channels' outputs, and of their squares or of their products with the factor."""
        return self.partial_sums[:, 0, :channels].sum(0), self.partial_sums[:, 1, :channels].sum(0)


def forward(x: Tensor, weight: Tensor) -> HopperConvResult:
    """Return the convolution, with the sums of its outputs and of their squares."""
    return _run(channels_last(x), _pad_rows(weight), len(weight), sum_squares=True)


def dgrad(grad: Tensor, weight: Tensor) -> HopperConvResult:
    """Return the gradient with respect to the input, without sums.

    It is a convolution with flipped taps, from output channels to input channels.
    """
    return _run(channels_last(grad), _pad_rows(weight.flip(2, 3).transpose(0, 1)), weight.shape[1])


def _run(
    x: Tensor,
    weight: Tensor,
    out_channels: int,
    addend: Tensor | None = None,
    factor: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    sum_squares: bool = False,
) -> HopperConvResult:
    y, sums = _conv3x3(x, weight, sm_count(x.device), out_channels, sum_squares, addend, factor, scale, shift)
    return HopperConvResult(y, sums, x, weight, addend)


def drop_unused_sums(graph: fx.Graph) -> None:
    """Turn off the sums of squares in the calls of a graph whose sums nothing reads."""
    at = SUM_SQUARES_ARGUMENT
    for node in graph.nodes:
        if node.target is torch.ops.metalabelnet.conv3x3.default and all(user.args[1] == 0 for user in node.users):
            node.args = (*node.args[:at], False, *node.args[at + 1 :])


def _pad_rows(weight: Tensor) -> Tensor:
    """Return the weights with input channels padded to full rows: TMA loads of unaligned rows take twice as long."""
    return channels_last(pad(weight, [0, 0, 0, 0, 0, -weight.shape[1] % 64]))


@torch.library.custom_op("metalabelnet::conv3x3", mutates_args=())
def _conv3x3(
    x: Tensor,
    weight: Tensor,
    sm_count: int,
    out_channels: int,
    sum_squares: bool,  # noqa: FBT001
    addend: Tensor | None,
    factor: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
) -> tuple[Tensor, Tensor]:
    plan, epilogue = _plan_for(x, out_channels), _select_epilogue(sum_squares, factor, scale)
    y, sums = _allocate(x, plan, sm_count, epilogue)
    assert all(t is None or (t.shape, t.stride(), t.dtype) == (y.shape, y.stride(), y.dtype) for t in (addend, factor))
    grid = plan.pixel_splits(len(x), sm_count), plan.channel_blocks
    x_map = make_tensor_map(x.permute(0, 2, 3, 1), [1, plan.tile_rows + 2, plan.tile_columns + 2, 64])
    weight_map = make_tensor_map(weight.permute(0, 2, 3, 1).flatten(1, 2), [plan.block_out, 1, 64])
    kernel = _get_kernel(plan, x.device, addend is not None, epilogue)
    kernel(grid, plan.warpgroups * 128, x_map, weight_map, y, sums, addend, factor, scale, shift, len(x))
    return y, sums


@_conv3x3.register_fake
def _(
    x: Tensor,
    weight: Tensor,  # noqa: ARG001
    sm_count: int,
    out_channels: int,
    sum_squares: bool,  # noqa: FBT001
    addend: Tensor | None,  # noqa: ARG001
    factor: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    return _allocate(x, _plan_for(x, out_channels), sm_count, _select_epilogue(sum_squares, factor, scale))


def _select_epilogue(sum_squares: bool, factor: Tensor | None, scale: Tensor | None) -> int:  # noqa: FBT001
    """Return the epilogue that these arguments of the operator ask for."""
    if factor is not None:
        return SUM_PRODUCTS if scale is None else SUM_MASKED_PRODUCTS
    if scale is not None:
        return AFFINE_RELU
    return SUM_SQUARES if sum_squares else STORE


def _plan_for(x: Tensor, out_channels: int) -> ConvPlan:
    plan = make_conv_plan(*x.shape[2:], x.shape[1], out_channels)
    assert plan is not None
    return plan


def _allocate(x: Tensor, plan: ConvPlan, sm_count: int, epilogue: int) -> tuple[Tensor, Tensor]:
    shape = len(x), plan.out_channels, plan.height, plan.width
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    rows = plan.pixel_splits(len(x), sm_count) if epilogue in EPILOGUES_WITH_SUMS else 0
    return y, x.new_empty((rows, 2, plan.out_channels), dtype=torch.float32)


@functools.cache
def _get_kernel(plan: ConvPlan, device: torch.device, has_addend: bool, epilogue: int) -> Kernel:  # noqa: FBT001
    arguments = [int(argument) for argument in (*dataclasses.astuple(plan), has_addend, epilogue)]
    wgmma = wgmma_source(plan.block_out, transpose_a=False, transpose_b=False)
    return load_kernel("conv3x3", arguments, wgmma, plan.shared_bytes, device)


@functools.cache
def conv_compile_failure(plan: ConvPlan, device: torch.device) -> str | None:
    """Return why the kernel cannot be compiled, or None."""
    return compile_failure(lambda: _get_kernel(plan, device, False, SUM_SQUARES))  # noqa: FBT003
