"""3×3 convolutions in bfloat16 by a kernel of our own, for cards of compute capability 9.0 (H100, H200).

The library's kernels read every pixel nine times from the cache, once for each tap, and with the 64 to 200 channels of
small networks that is what they wait for. The kernel in `conv3x3.cu` reads it once. It also adds up its outputs and
their squares on the way, which BatchNorm would read all of them again for. The gradient by what went in is the same
kernel over the same weights, read the other way around.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from metalabelnet.engine.cuda import SHARED, Kernel, boxes

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 208  # outputs of a block: what a warpgroup adds up is in its registers
ROW = 128  # bytes of a row in shared memory: 64 channels


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
    back: bool

    @property
    def panels(self) -> int:
        """Parts of 64 channels."""
        return -(-self.inputs // 64)

    @property
    def blocks(self) -> int:
        """Parts of the outputs."""
        return -(-self.outputs // self.block)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles, weights, barriers, totals of each warp, and what is lost to alignment."""
        pixels = (self.rows + 2) * (self.columns + 2)
        tile = self.panels * -(-pixels * ROW // 1024) * 1024
        part = -(-self.block // 64) * 64 * ROW if self.back else self.block * ROW
        tiles, weights = self.groups * self.buffers * tile, self.stages * part
        barriers, totals = 16 * self.stages + 8 * self.groups * self.buffers, self.groups * 4 * 2 * self.block * 4
        return tiles + weights + barriers + totals + 1024 + 16

    def wide(self, images: int, processors: int) -> int:
        """Blocks for each part of the outputs: as many as have the same number of turns as one for each processor."""
        tiles = images * (self.height // self.rows) * (self.width // self.columns)
        return _shared_out(-(-tiles // self.groups), max(1, processors // self.blocks))


def _shared_out(work: int, most: int) -> int:
    """The fewest blocks, up to so many, that do not have to do more each."""
    return -(-work // -(-work // most))


@functools.cache
def plan(height: int, width: int, inputs: int, outputs: int, *, back: bool) -> Plan | None:
    """The way that was fastest where it was tried; none for layers the kernel does not take."""
    if height % 8 or width % 8 or inputs % 8 or outputs % 8:
        return None
    layer = height, width, inputs, outputs
    blocks = -(-outputs // MOST)
    block = -(-outputs // (8 * blocks)) * 8
    parts = 9 * -(-inputs // 64)
    ways = []
    if block <= 128:  # all weights stay
        ways += [Plan(*layer, block, groups, 8, 8, parts, buffers, back) for groups, buffers in ((4, 2), (2, 2), (2, 1))]
    wide = block <= 128 and width % 16 == 0
    ways += [Plan(*layer, block, 2 if wide else 1, 8, 16 if wide else 8, stages, 1, back) for stages in (8, 7, 6, 5, 4)]
    return next((way for way in ways if way.shared <= SHARED), None)


def takes(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], *, back: bool
) -> bool:
    """Whether the kernel does this convolution, or goes back."""
    if not _of_this_kind(x, weight, stride, padding, dilation):
        return False
    outputs, inputs = weight.shape[:2]
    way = plan(*x.shape[2:], *((outputs, inputs) if back else (inputs, outputs)), back=back)
    return way is not None and _works(way)


def _of_this_kind(x: Tensor, weight: Tensor, *around: Sequence[int]) -> bool:
    """3×3, one step at a time, a border of one, bfloat16, a card of this kind."""
    if not (x.is_cuda and x.dtype == weight.dtype == torch.bfloat16 and weight.shape[2:] == (3, 3) and x.ndim == 4):
        return False
    ones = all(number == 1 for numbers in around for number in numbers)
    return ones and torch.cuda.get_device_capability(x.device) == (9, 0)


def convolution(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The convolution, and the totals over pixels of its outputs and of their squares: [blocks, 2, outputs]."""
    y, totals = _conv3x3(_last(x), _in_rows(weight), len(weight), False, True)  # noqa: FBT003
    return y, totals


def back(grad: Tensor, weight: Tensor) -> Tensor:
    """From the gradient by what comes out of the convolution to the gradient by what went in."""
    by_x: Tensor = _conv3x3(_last(grad), _in_rows(weight), weight.shape[1], True, False)[0]  # noqa: FBT003
    return by_x


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _in_rows(weight: Tensor) -> Tensor:
    """The weights with zeros behind the inputs, up to whole rows: those that begin anywhere take twice as long."""
    return _last(pad(weight, [0, 0, 0, 0, 0, -weight.shape[1] % 64]))


@torch.library.custom_op("metalabelnet::conv3x3", mutates_args=())
def _conv3x3(
    x: Tensor,
    weight: Tensor,
    outputs: int,
    back: bool,  # noqa: FBT001
    totals: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor]:
    way = plan(*x.shape[2:], x.shape[1], outputs, back=back)
    assert way is not None
    images, taps = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
    assert images.is_contiguous()
    assert taps.is_contiguous()
    y, sums = _empty(x, way, totals=totals)
    grid = way.wide(len(x), _processors(x.device)), way.blocks
    tiles = boxes(images, [1, way.rows + 2, way.columns + 2, 64])
    weights = boxes(taps.flatten(1, 2), [64 if back else way.block, 1, 64])
    _kernel(way, totals)(grid, way.groups * 128, tiles, weights, y, sums, len(x))
    return y, sums


@_conv3x3.register_fake
def _(x: Tensor, weight: Tensor, outputs: int, back: bool, totals: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    way = plan(*x.shape[2:], x.shape[1], outputs, back=back)
    assert way is not None
    return _empty(x, way, totals=totals)


def _empty(x: Tensor, way: Plan, *, totals: bool) -> tuple[Tensor, Tensor]:
    images = len(x)
    shape = images, way.outputs, way.height, way.width
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    rows = way.wide(images, _processors(x.device)) if totals else 0
    return y, x.new_empty((rows, 2, way.outputs), dtype=torch.float32)


@functools.cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclasses.dataclass(frozen=True)
class GradPlan:
    """The same for the gradient by weights; `grad3x3.cu` says what each number means."""

    height: int
    width: int
    inputs: int
    outputs: int
    taps: int
    matrices: int
    rows: int
    columns: int
    stages: int

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of what went in and of the gradient, barriers, what is lost to alignment."""
        pixels = (self.rows + 2 if self.taps == 3 else self.rows) * (self.columns + 2)
        ours = self.matrices * self.rows * self.columns * ROW
        return self.stages * (-(-self.inputs // 64) * -(-pixels * ROW // 1024) * 1024 + ours + 16) + 1024

    @property
    def blocks(self) -> int:
        """Parts of the weights."""
        return -(-self.outputs // (64 * self.matrices)) * (1 if self.taps == 3 else 3)

    def parts(self, images: int, processors: int) -> int:
        """Parts of the pixels."""
        tiles = images * (self.height // self.rows) * (self.width // self.columns)
        return _shared_out(tiles, max(1, processors // self.blocks))


@functools.cache
def grad_plan(height: int, width: int, inputs: int, outputs: int) -> GradPlan | None:
    """A way that fits the registers of three warpgroups; none for layers the kernel does not take."""
    if height % 8 or width % 8 or inputs % 8 or outputs % 8 or inputs > MOST:
        return None
    taps = 3 if inputs <= 64 else 1
    matrices = 2 if taps == 1 and inputs <= 128 and outputs > 64 else 1
    layer = height, width, inputs, outputs
    columns = 16 if width % 16 == 0 else 8
    ways = [GradPlan(*layer, taps, matrices, 8, columns, stages) for stages in (5, 4, 3, 2)]
    return next((way for way in ways if way.shared <= SHARED), None)


def takes_by_weight(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> bool:
    """Whether a kernel of ours finds the gradient by these weights."""
    if not _of_this_kind(x, weight, stride, padding, dilation):
        return False
    way = grad_plan(*x.shape[2:], weight.shape[1], weight.shape[0])
    return way is not None and _works(way)


def by_weight(x: Tensor, grad: Tensor) -> Tensor:
    """The gradient by the weights, of what went in and the gradient by what came out; in float32."""
    by_tap: Tensor = _grad3x3(_last(x), _last(grad))
    return by_tap.unflatten(0, (3, 3)).permute(2, 3, 0, 1)


@torch.library.custom_op("metalabelnet::grad3x3", mutates_args=())
def _grad3x3(x: Tensor, grad: Tensor) -> Tensor:
    way = grad_plan(*x.shape[2:], x.shape[1], grad.shape[1])
    assert way is not None
    images, by_y = x.permute(0, 2, 3, 1), grad.permute(0, 2, 3, 1)
    assert images.is_contiguous()
    assert by_y.is_contiguous()
    by_tap = _empty_taps(x, grad)
    parts = by_tap.new_empty((way.parts(len(x), _processors(x.device)), by_tap.numel()))
    tiles = boxes(images, [1, way.rows + (2 if way.taps == 3 else 0), way.columns + 2, 64])
    ours = boxes(by_y, [1, way.rows, way.columns, 64])
    _kernel(way)((len(parts), way.blocks), 384, tiles, ours, parts, len(x))
    _add_up()((-(-by_tap.numel() // 128), 1), 256, parts, by_tap, *parts.shape)
    return by_tap


@_grad3x3.register_fake
def _(x: Tensor, grad: Tensor) -> Tensor:
    return _empty_taps(x, grad)


def _empty_taps(x: Tensor, grad: Tensor) -> Tensor:
    return torch.empty((9, grad.shape[1], x.shape[1]), dtype=torch.float32, device=x.device)


@functools.cache
def _kernel(way: Plan | GradPlan, totals: bool = False) -> Kernel:  # noqa: FBT001, FBT002
    numbers = [int(number) for number in dataclasses.astuple(way)]
    if isinstance(way, Plan):
        name, numbers, wide, turned = "conv3x3", [*numbers, int(totals)], way.block, (False, way.back)
    else:
        name, wide, turned = "grad3x3", way.inputs, (True, True)
    return Kernel(_source(name, _mma(wide, *turned)), f"{name}<{', '.join(map(str, numbers))}>", way.shared)


@functools.cache
def _add_up() -> Kernel:
    return Kernel(_source("grad3x3", _mma(8, a_turned=True, b_turned=True)), "add_up", 0)


def _source(name: str, mma: str) -> str:
    here = Path(__file__).parent
    common, own = ((here / file).read_text(encoding="utf-8") for file in ("hopper.cuh", f"{name}.cu"))
    return "\n".join([common, mma, own])


@functools.cache
def _works(way: Plan | GradPlan) -> bool:
    try:
        _kernel(way, isinstance(way, Plan) and not way.back)
        _add_up()
    except Exception:  # noqa: BLE001 (an older PyTorch, no compiler beside it: the library's kernels do it)
        return False
    return True


def _mma(wide: int, a_turned: bool, b_turned: bool) -> str:  # noqa: FBT001
    """The instruction that multiplies, for so many columns: it names every register.

    sums[64, wide] (+)= a[64, 16] b[wide, 16]; turned, the sixteen come first in memory.
    """
    count = wide // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    shape = f"m64n{wide}k16.f32.bf16.bf16"
    operands = f"%{count}, %{count + 1}, p, 1, 1, {int(a_turned)}, {int(b_turned)}"
    return f"""__device__ __forceinline__ void mma(int add, float (&sums)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, {operands};\\n}}"
                 : {sums} : "l"(a), "l"(b), "r"(add));
}}"""


def without_idle_totals(graph: Any) -> None:
    """Have no convolution of a recording add up what nothing reads."""
    for node in graph.nodes:
        if node.target is torch.ops.metalabelnet.conv3x3.default and all(user.args[1] == 0 for user in node.users):
            node.args = (*node.args[:-1], False)
