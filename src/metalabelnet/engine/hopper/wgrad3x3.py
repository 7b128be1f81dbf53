"""wgrad: the launch configuration of the kernel in `wgrad3x3.cu`, and an operator for traced graphs."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.engine.hopper.nvrtc import Kernel, make_tensor_map
from metalabelnet.engine.hopper.tiling import (
    ROW_BYTES,
    are_multiples_of_8,
    balanced_ctas,
    channels_last,
    compile_failure,
    kernel_source,
    load_kernel,
    pad_to,
    sm_count,
    tile_bytes,
    wgmma_source,
)

if TYPE_CHECKING:
    from metalabelnet.engine.kernels import AffineGrad

THREADS = 384  # three warpgroups, one for each row of taps
OUT_CHANNELS_PER_CTA = 64
MAX_IN_CHANNELS_PER_CTA = 72  # a warpgroup holds the accumulators of three taps in registers
REDUCTION_THREADS = 256


@dataclasses.dataclass(frozen=True)
class WgradPlan:
    """Template arguments of the kernel for one layer, in their order; `wgrad3x3.cu` documents them."""

    height: int
    width: int
    in_channels: int
    out_channels: int
    block_in: int
    tile_rows: int
    tile_columns: int
    stages: int
    affine_grad: bool

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: tiles of the input and of the gradient, mbarriers, alignment."""
        input_tiles = -(-self.block_in // 64) * tile_bytes((self.tile_rows + 2) * (self.tile_columns + 2))
        grad_tiles = (1 + self.affine_grad) * self.tile_rows * self.tile_columns * ROW_BYTES
        return self.stages * (input_tiles + grad_tiles + 16) + 1024

    @property
    def weight_blocks(self) -> int:
        """Blocks of the weights, each computed by its own CTAs."""
        return -(-self.out_channels // OUT_CHANNELS_PER_CTA) * -(-self.in_channels // self.block_in)

    def pixel_splits(self, images: int, sms: int) -> int:
        """Return how many CTAs share the pixels of one weight block."""
        tiles = images * (self.height // self.tile_rows) * (self.width // self.tile_columns)
        return balanced_ctas(tiles, max(1, sms // self.weight_blocks))


@functools.cache
def make_wgrad_plan(
    height: int, width: int, in_channels: int, out_channels: int, *, affine_grad: bool = False
) -> WgradPlan | None:
    """Return a configuration that fits the registers of three warpgroups, or None for an unsupported layer."""
    if not are_multiples_of_8(height, width, in_channels, out_channels):
        return None
    block_in = -(-in_channels // (8 * -(-in_channels // MAX_IN_CHANNELS_PER_CTA))) * 8
    tile_columns = 16 if width % 16 == 0 and block_in <= 64 else 8
    stages = 3 if affine_grad else 5
    return WgradPlan(height, width, in_channels, out_channels, block_in, 8, tile_columns, stages, affine_grad)


def wgrad(x: Tensor, grad: Tensor, affine_grad: AffineGrad | None = None) -> Tensor:
    """Return the gradient with respect to the weights in float32, from the input and the gradient of the output.

    If that gradient is an affine combination of two tensors, the kernel computes it while it loads them.
    """
    if affine_grad is None:
        by_tap: Tensor = _wgrad3x3(channels_last(x), channels_last(grad), sm_count(x.device), None, None)
    else:
        channels = affine_grad.grad.shape[1]
        coefficients = torch.stack([pad_to(each, channels) for each in affine_grad[2:]])
        operands = channels_last(affine_grad.grad), sm_count(x.device), channels_last(affine_grad.x)
        by_tap = _wgrad3x3(channels_last(x), *operands, coefficients)
    return by_tap.view(3, 3, *by_tap.shape[1:]).permute(2, 3, 0, 1)


@torch.library.custom_op("metalabelnet::wgrad3x3", mutates_args=())
def _wgrad3x3(x: Tensor, grad: Tensor, sm_count: int, other: Tensor | None, coefficients: Tensor | None) -> Tensor:
    plan = make_wgrad_plan(*x.shape[2:], x.shape[1], grad.shape[1], affine_grad=other is not None)
    assert plan is not None
    by_tap = _allocate(x, grad)
    partial = by_tap.new_empty((plan.pixel_splits(len(x), sm_count), by_tap.numel()))
    x_map = make_tensor_map(x.permute(0, 2, 3, 1), [1, plan.tile_rows + 2, plan.tile_columns + 2, 64])
    grad_box = [1, plan.tile_rows, plan.tile_columns, 64]
    grad_map = make_tensor_map(grad.permute(0, 2, 3, 1), grad_box)
    other_map = grad_map if other is None else make_tensor_map(other.permute(0, 2, 3, 1), grad_box)
    arguments = x_map, grad_map, other_map, coefficients, partial, len(x)
    _get_kernel(plan, x.device)((len(partial), plan.weight_blocks), THREADS, *arguments)
    reduction_ctas = -(-by_tap.numel() // (REDUCTION_THREADS // 2))
    _get_reduction_kernel(x.device)((reduction_ctas, 1), REDUCTION_THREADS, partial, by_tap, *partial.shape)
    return by_tap


@_wgrad3x3.register_fake
def _(x: Tensor, grad: Tensor, sm_count: int, other: Tensor | None, coefficients: Tensor | None) -> Tensor:  # noqa: ARG001
    return _allocate(x, grad)


def _allocate(x: Tensor, grad: Tensor) -> Tensor:
    return torch.empty((9, grad.shape[1], x.shape[1]), dtype=torch.float32, device=x.device)


@functools.cache
def _get_kernel(plan: WgradPlan, device: torch.device) -> Kernel:
    arguments = [int(argument) for argument in dataclasses.astuple(plan)]
    return load_kernel("wgrad3x3", arguments, _wgmma(plan.block_in), plan.shared_bytes, device)


@functools.cache
def _get_reduction_kernel(device: torch.device) -> Kernel:
    return Kernel(kernel_source("wgrad3x3", _wgmma(8)), "sum_partials", 0, device)


def _wgmma(columns: int) -> str:
    return wgmma_source(columns, transpose_a=True, transpose_b=True)


@functools.cache
def wgrad_compile_failure(plan: WgradPlan, device: torch.device) -> str | None:
    """Return why the kernel cannot be compiled, or None."""
    return compile_failure(lambda: (_get_kernel(plan, device), _get_reduction_kernel(device)))
