"""The convolution, and the way back: how the kernel in `conv3x3.cu` goes about a layer, and an operator for recordings.

On the way it adds up what BatchNorm would read everything again for. What that is shows later, when BatchNorm is come
to: then the recording says the convolution again, with more, and the first one is read by nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn.functional import pad

from metalabelnet.engine.hopper.nvrtc import Kernel, boxes
from metalabelnet.engine.hopper.tiling import (
    RESERVED,
    ROW,
    SHARED,
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 208  # columns of a product: what a warpgroup adds up is in its registers
NOTHING, SQUARES, PRODUCTS, POSITIVE, RECTIFIED = range(5)  # what the kernel does with each output


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the kernel goes about one layer; `conv3x3.cu` says what each number means."""

    height: int
    width: int
    inputs: int
    outputs: int
    block: int
    groups: int
    rows: int
    columns: int
    stages: int
    buffers: int
    beside: int

    @property
    def blocks(self) -> int:
        """Parts of the outputs."""
        return -(-self.outputs // self.block)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles, weights, barriers, lines, totals of each warp, and what alignment takes."""
        tile = -(-self.inputs // 64) * bytes_of_rows((self.rows + 2) * (self.columns + 2))
        tiles, weights = self.groups * self.buffers * tile, self.stages * self.block * ROW
        barriers, numbers = 2 * self.stages + self.groups * (1 + self.buffers), (self.groups * 4 + 1) * 2 * self.block
        return tiles + weights + 8 * barriers + 4 * numbers + 1024 + 16

    def wide(self, images: int, processors: int) -> int:
        """Blocks for each part of the outputs, on so many processors."""
        tiles = images * (self.height // self.rows) * (self.width // self.columns)
        return shared_out(-(-tiles // self.groups), max(1, processors * self.beside // self.blocks))


@functools.cache
def plan(height: int, width: int, inputs: int, outputs: int) -> Plan | None:
    """The way that was fastest where it was tried; none for layers the kernel does not take."""
    if not by_eights(height, width, inputs, outputs):
        return None
    layer = height, width, inputs, outputs
    block = -(-outputs // (8 * -(-outputs // MOST))) * 8
    parts = 9 * -(-inputs // 64)
    ways = []
    if block <= 128:  # all weights stay
        choices = (4, 2), (2, 2), (2, 1)
        ways += [Plan(*layer, block, groups, 8, 8, parts, buffers, 1) for groups, buffers in choices]
    wide = block <= 128 and width % 16 == 0
    if wide:  # two blocks on a processor: one stores while the other multiplies
        ways += [Plan(*layer, block, 1, 8, 16, 3, 1, 2)]
    groups, columns = (2, 16) if wide else (1, 8)
    ways += [Plan(*layer, block, groups, 8, columns, stages, 1, 1) for stages in (8, 7, 6, 5, 4)]
    return next((way for way in ways if way.beside * (way.shared + RESERVED) <= SHARED + RESERVED), None)


def takes(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], *, back: bool
) -> bool:
    """Whether the kernel does this convolution, or goes back."""
    if not of_this_kind(x, weight, stride, padding, dilation):
        return False
    outputs, inputs = weight.shape[:2]
    way = plan(*x.shape[2:], *((outputs, inputs) if back else (inputs, outputs)))
    return way is not None and _works(way, x.device)


class Line(NamedTuple):
    """For every output a line over other numbers, of the same form as what comes out."""

    of: Tensor
    slope: Tensor
    at_zero: Tensor


class Made(NamedTuple):
    """What the kernel gives, and of what it is made.

    sums   of the outputs, and of their squares or products, over parts of the pixels: [parts, 2, outputs]
    """

    y: Tensor
    sums: Tensor
    x: Tensor
    weight: Tensor
    plus: Tensor | None

    def again(self, *, plus: Tensor | None = None, other: Tensor | None = None, positive: Line | None = None) -> Made:
        """The same plus another tensor, summed with its products with another; zero but where a line is positive."""
        plus = self.plus if plus is None else plus
        of, outputs = (self.x, self.weight), self.y.shape[1]
        if positive is None:
            return _made(*of, outputs, plus, other)
        line = (padded(each, outputs) for each in (positive.slope, positive.at_zero))
        return _made(*of, outputs, plus, positive.of, *line)

    def rectified(self, slope: Tensor, at_zero: Tensor) -> Tensor:
        """Of every output its line, or zero where that is below."""
        outputs = self.y.shape[1]
        line = (padded(each, outputs) for each in (slope, at_zero))
        return _made(self.x, self.weight, outputs, None, None, *line).y

    def totals(self, outputs: int) -> tuple[Tensor, Tensor]:
        """The sums over all pixels, for each of so many outputs."""
        return self.sums[:, 0, :outputs].sum(0), self.sums[:, 1, :outputs].sum(0)


def convolution(x: Tensor, weight: Tensor) -> Made:
    """The convolution; its sums are with squares."""
    return _made(last(x), _in_rows(weight), len(weight), squares=True)


def back(grad: Tensor, weight: Tensor) -> Made:
    """From the gradient by what comes out of the convolution to the gradient by what went in; without sums.

    It is a convolution, too: the taps the other way round, from outputs to inputs.
    """
    return _made(last(grad), _in_rows(weight.flip(2, 3).transpose(0, 1)), weight.shape[1])


def _made(
    x: Tensor,
    weight: Tensor,
    outputs: int,
    plus: Tensor | None = None,
    other: Tensor | None = None,
    slope: Tensor | None = None,
    at_zero: Tensor | None = None,
    *,
    squares: bool = False,
) -> Made:
    y, sums = _conv3x3(x, weight, processors(x.device), outputs, squares, plus, other, slope, at_zero)
    return Made(y, sums, x, weight, plus)


def without_idle_totals(graph: fx.Graph) -> None:
    """Have no convolution of a recording add up squares that nothing reads."""
    for node in graph.nodes:
        if node.target is torch.ops.metalabelnet.conv3x3.default and all(user.args[1] == 0 for user in node.users):
            node.args = (*node.args[:4], False, *node.args[5:])


def _in_rows(weight: Tensor) -> Tensor:
    """The weights with zeros behind the inputs, up to whole rows: those that begin anywhere take twice as long."""
    return last(pad(weight, [0, 0, 0, 0, 0, -weight.shape[1] % 64]))


@torch.library.custom_op("metalabelnet::conv3x3", mutates_args=())
def _conv3x3(
    x: Tensor,
    weight: Tensor,
    processors: int,
    outputs: int,
    squares: bool,  # noqa: FBT001
    plus: Tensor | None,
    other: Tensor | None,
    slope: Tensor | None,
    at_zero: Tensor | None,
) -> tuple[Tensor, Tensor]:
    way, then = _plan_for(x, outputs), _then(squares, other, slope)
    images, taps = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
    y, sums = _empty(x, way, processors, then)
    assert all(t is None or (t.shape, t.stride(), t.dtype) == (y.shape, y.stride(), y.dtype) for t in (plus, other))
    grid = way.wide(len(x), processors), way.blocks
    tiles = boxes(images, [1, way.rows + 2, way.columns + 2, 64])
    weights = boxes(taps.flatten(1, 2), [way.block, 1, 64])
    run = _kernel(way, x.device, plus is not None, then)
    run(grid, way.groups * 128, tiles, weights, y, sums, plus, other, slope, at_zero, len(x))
    return y, sums


@_conv3x3.register_fake
def _(
    x: Tensor,
    weight: Tensor,  # noqa: ARG001
    processors: int,
    outputs: int,
    squares: bool,  # noqa: FBT001
    plus: Tensor | None,  # noqa: ARG001
    other: Tensor | None,
    slope: Tensor | None,
    at_zero: Tensor | None,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    return _empty(x, _plan_for(x, outputs), processors, _then(squares, other, slope))


def _then(squares: bool, other: Tensor | None, slope: Tensor | None) -> int:  # noqa: FBT001
    """What is asked for, in the kernel's words."""
    if other is not None:
        return PRODUCTS if slope is None else POSITIVE
    if slope is not None:
        return RECTIFIED
    return SQUARES if squares else NOTHING


def _plan_for(x: Tensor, outputs: int) -> Plan:
    way = plan(*x.shape[2:], x.shape[1], outputs)
    assert way is not None
    return way


def _empty(x: Tensor, way: Plan, processors: int, then: int) -> tuple[Tensor, Tensor]:
    shape = len(x), way.outputs, way.height, way.width
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    rows = way.wide(len(x), processors) if then in (SQUARES, PRODUCTS, POSITIVE) else 0
    return y, x.new_empty((rows, 2, way.outputs), dtype=torch.float32)


@functools.cache
def _kernel(way: Plan, device: torch.device, plus: bool, then: int) -> Kernel:  # noqa: FBT001
    numbers = [int(number) for number in (*dataclasses.astuple(way), plus, then)]
    return kernel("conv3x3", numbers, product(way.block, a_turned=False, b_turned=False), way.shared, device)


@functools.cache
def _works(way: Plan, device: torch.device) -> bool:
    return compiles(lambda: _kernel(way, device, plus=False, then=SQUARES))
