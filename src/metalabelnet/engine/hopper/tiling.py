"""What the kernels have in common: the layers they are for, how work is shared out, how their source is made."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from metalabelnet.engine.hopper.nvrtc import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

SHARED = 232_448  # bytes of shared memory a block may have
RESERVED = 1024  # bytes of it that every block takes besides
ROW = 128  # bytes of a row there: 64 channels of a pixel


def of_this_kind(x: Tensor, weight: Tensor, *around: Sequence[int]) -> bool:
    """3×3, one step at a time, a border of one, bfloat16, a card of this kind."""
    if not (x.is_cuda and x.dtype == weight.dtype == torch.bfloat16 and weight.shape[2:] == (3, 3) and x.ndim == 4):
        return False
    ones = all(number == 1 for numbers in around for number in numbers)
    return ones and torch.cuda.get_device_capability(x.device) == (9, 0)


def by_eights(*sizes: int) -> bool:
    """Whether all are multiples of eight: sides of patches, channels of the 16 bytes that are brought at once."""
    return not any(size % 8 for size in sizes)


def bytes_of_rows(pixels: int) -> int:
    """Of so many rows in shared memory, up to where the next may begin."""
    return -(-pixels * ROW // 1024) * 1024


def shared_out(work: int, most: int) -> int:
    """The fewest blocks, up to so many, that do not have to do more each."""
    return -(-work // -(-work // most))


def last(x: Tensor) -> Tensor:
    """The tensor with its channels last."""
    return x.contiguous(memory_format=torch.channels_last)


def padded(by_output: Tensor, outputs: int) -> Tensor:
    """A number for each output, with zeros for those that are there to make eights."""
    return pad(by_output, [0, outputs - len(by_output)])


@functools.cache
def processors(device: torch.device) -> int:
    """How many there are, each with tensor cores and shared memory of its own."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def kernel(name: str, numbers: Sequence[int], mma: str, shared: int, device: torch.device) -> Kernel:
    """The template of this name, in the file of this name, with these arguments."""
    return Kernel(source(name, mma), f"{name}<{', '.join(str(number) for number in numbers)}>", shared, device)


def compiles(make: Callable[[], object]) -> bool:
    """Whether a kernel can be made here: not with an older PyTorch, or no compiler beside it."""
    try:
        make()
    except Exception:  # whatever it was, the library does what the kernel would
        return False
    return True


def source(name: str, mma: str) -> str:
    """The text of one file, behind what all have in common and the product it asks for."""
    here = Path(__file__).parent
    common, own = ((here / file).read_text(encoding="utf-8") for file in ("hopper.cuh", f"{name}.cu"))
    return "\n".join([common, mma, own])


def product(columns: int, *, a_turned: bool, b_turned: bool) -> str:
    """The instruction that multiplies, for so many columns: it names every register.

    sums[64, columns] (+)= a[64, 16] b[columns, 16]; turned, the sixteen come first in memory.
    """
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    shape = f"m64n{columns}k16.f32.bf16.bf16"
    operands = f"%{count}, %{count + 1}, p, 1, 1, {int(a_turned)}, {int(b_turned)}"
    return f"""__device__ __forceinline__ void mma(int add, float (&sums)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, {operands};\\n}}"
                 : {sums} : "l"(a), "l"(b), "r"(add));
}}"""
