"""The gradient by the weights: how the kernel in `grad3x3.cu` goes about a layer, and an operator for recordings."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from metalabelnet.engine.hopper.nvrtc import Kernel, boxes
from metalabelnet.engine.hopper.tiling import (
    ROW,
    by_eights,
    bytes_of_rows,
    compiles,
    kernel,
    last,
    of_this_kind,
    padded,
    processors,
    product,
    shared_out,
    source,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS = 384  # three warpgroups
MOST = 72  # inputs of a block: what a warpgroup adds up of three taps is in its registers


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the kernel goes about one layer; `grad3x3.cu` says what each number means."""

    height: int
    width: int
    inputs: int
    outputs: int
    block: int
    rows: int
    columns: int
    stages: int
    joined: bool

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of what went in and of the gradient, barriers, what is lost to alignment."""
        theirs = -(-self.block // 64) * bytes_of_rows((self.rows + 2) * (self.columns + 2))
        ours = (1 + self.joined) * self.rows * self.columns * ROW
        return self.stages * (theirs + ours + 16) + 1024

    @property
    def blocks(self) -> int:
        """Parts of the weights."""
        return -(-self.outputs // 64) * -(-self.inputs // self.block)

    def parts(self, images: int, processors: int) -> int:
        """Parts of the pixels, on so many processors."""
        tiles = images * (self.height // self.rows) * (self.width // self.columns)
        return shared_out(tiles, max(1, processors // self.blocks))


@functools.cache
def plan(height: int, width: int, inputs: int, outputs: int, *, joined: bool = False) -> Plan | None:
    """A way that fits the registers of three warpgroups; none for layers the kernel does not take."""
    if not by_eights(height, width, inputs, outputs):
        return None
    block = -(-inputs // (8 * -(-inputs // MOST))) * 8
    columns = 16 if width % 16 == 0 and block <= 64 else 8
    return Plan(height, width, inputs, outputs, block, 8, columns, 3 if joined else 5, joined)


def takes_by_weight(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> bool:
    """Whether the kernel finds the gradient by these weights."""
    if not of_this_kind(x, weight, stride, padding, dilation):
        return False
    way = plan(*x.shape[2:], weight.shape[1], weight.shape[0])
    return way is not None and _works(way, x.device)


class Joined(NamedTuple):
    """A gradient that is yet to be made of two: so much of each, and so much more, for every output."""

    grad: Tensor
    other: Tensor
    of_grad: Tensor
    of_other: Tensor
    more: Tensor


def by_weight(x: Tensor, grad: Tensor, joined: Joined | None = None) -> Tensor:
    """The gradient by the weights, of what went in and the gradient by what came out; in float32.

    If that gradient is known to be joined of two, the kernel joins them on its way.
    """
    if joined is None:
        by_tap: Tensor = _grad3x3(last(x), last(grad), processors(x.device), None, None)
    else:
        numbers = torch.stack([padded(each, joined.grad.shape[1]) for each in joined[2:]])
        by_tap = _grad3x3(last(x), last(joined.grad), processors(x.device), last(joined.other), numbers)
    return by_tap.view(3, 3, *by_tap.shape[1:]).permute(2, 3, 0, 1)


@torch.library.custom_op("metalabelnet::grad3x3", mutates_args=())
def _grad3x3(x: Tensor, grad: Tensor, processors: int, other: Tensor | None, numbers: Tensor | None) -> Tensor:
    way = plan(*x.shape[2:], x.shape[1], grad.shape[1], joined=other is not None)
    assert way is not None
    by_tap = _empty(x, grad)
    parts = by_tap.new_empty((way.parts(len(x), processors), by_tap.numel()))
    theirs = boxes(x.permute(0, 2, 3, 1), [1, way.rows + 2, way.columns + 2, 64])
    ours = boxes(grad.permute(0, 2, 3, 1), [1, way.rows, way.columns, 64])
    others = ours if other is None else boxes(other.permute(0, 2, 3, 1), [1, way.rows, way.columns, 64])
    _kernel(way, x.device)((len(parts), way.blocks), THREADS, theirs, ours, others, numbers, parts, len(x))
    _add_up(x.device)((-(-by_tap.numel() // 128), 1), 256, parts, by_tap, *parts.shape)
    return by_tap


@_grad3x3.register_fake
def _(x: Tensor, grad: Tensor, processors: int, other: Tensor | None, numbers: Tensor | None) -> Tensor:  # noqa: ARG001
    return _empty(x, grad)


def _empty(x: Tensor, grad: Tensor) -> Tensor:
    return torch.empty((9, grad.shape[1], x.shape[1]), dtype=torch.float32, device=x.device)


@functools.cache
def _kernel(way: Plan, device: torch.device) -> Kernel:
    return kernel("grad3x3", [int(n) for n in dataclasses.astuple(way)], _product(way.block), way.shared, device)


@functools.cache
def _add_up(device: torch.device) -> Kernel:
    return Kernel(source("grad3x3", _product(8)), "add_up", 0, device)


def _product(columns: int) -> str:
    return product(columns, a_turned=True, b_turned=True)


@functools.cache
def _works(way: Plan, device: torch.device) -> bool:
    return compiles(lambda: (_kernel(way, device), _add_up(device)))
