"""What both kernels share: the layers they support, the distribution of work, and how their source is assembled."""

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

MAX_SHARED_BYTES = 232_448  # shared memory of one CTA
RESERVED_SHARED_BYTES = 1024  # shared memory that the driver reserves for each CTA in addition
ROW_BYTES = 128  # a row in shared memory: 64 channels of a pixel
MAX_REASON_CHARACTERS = 200


def is_supported_layer(x: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
    """Tell whether a layer is 3×3 with stride, padding and dilation 1, in bfloat16, on compute capability 9.0."""
    if not (x.is_cuda and x.dtype == weight.dtype == torch.bfloat16 and weight.shape[2:] == (3, 3) and x.ndim == 4):
        return False
    all_ones = all(number == 1 for numbers in geometry for number in numbers)
    return all_ones and torch.cuda.get_device_capability(x.device) == (9, 0)


def are_multiples_of_8(*sizes: int) -> bool:
    """Tell whether all sizes are multiples of eight: sides of 8×8 subtiles, channels of 16-byte TMA loads."""
    return not any(size % 8 for size in sizes)


def tile_bytes(pixels: int) -> int:
    """Return the bytes of shared memory for a row per pixel, rounded up to the alignment of the next tile."""
    return -(-pixels * ROW_BYTES // 1024) * 1024


def balanced_ctas(work: int, max_ctas: int) -> int:
    """Return the fewest CTAs, at most `max_ctas`, that need no more rounds than `max_ctas` would."""
    return -(-work // -(-work // max_ctas))


def channels_last(x: Tensor) -> Tensor:
    """Return the tensor in channels-last memory format."""
    return x.contiguous(memory_format=torch.channels_last)


def pad_to(per_channel: Tensor, channels: int) -> Tensor:
    """Return one value per channel, with zeros for the channels that are padding."""
    return pad(per_channel, [0, channels - len(per_channel)])


@functools.cache
def sm_count(device: torch.device) -> int:
    """Return the number of SMs."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def load_kernel(
    name: str, template_arguments: Sequence[int], wgmma: str, shared_bytes: int, device: torch.device
) -> Kernel:
    """Return the kernel template `name` of the file `name`.cu with these arguments."""
    expression = f"{name}<{', '.join(str(argument) for argument in template_arguments)}>"
    return Kernel(kernel_source(name, wgmma), expression, shared_bytes, device)


def compile_failure(compile_kernels: Callable[[], object]) -> str | None:
    """Return why a kernel cannot be compiled (an unsupported PyTorch, a missing compiler), or None."""
    try:
        compile_kernels()
    except Exception as error:
        reason = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
        return reason or type(error).__name__
    return None


def kernel_source(name: str, wgmma: str) -> str:
    """Return the source of one .cu file, preceded by the common header and the wgmma instruction it uses."""
    folder = Path(__file__).parent
    header, kernel = ((folder / file).read_text(encoding="utf-8") for file in ("hopper.cuh", f"{name}.cu"))
    return "\n".join([header, wgmma, kernel])


def wgmma_source(columns: int, *, transpose_a: bool, transpose_b: bool) -> str:
    """Return the function `wgmma` for this number of columns; the instruction lists every accumulator register.

    acc[64, columns] (+)= a[64, 16] b[columns, 16]; a transposed operand has the sixteen as its leading dimension.
    """
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    accumulators = ", ".join(f'"+f"(acc[{i}])' for i in range(count))
    shape = f"m64n{columns}k16.f32.bf16.bf16"
    operands = f"%{count}, %{count + 1}, p, 1, 1, {int(transpose_a)}, {int(transpose_b)}"
    return f"""__device__ __forceinline__ void wgmma(int accumulate, float (&acc)[{count}], u64 a, u64 b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, {operands};\\n}}"
                 : {accumulators} : "l"(a), "l"(b), "r"(accumulate));
}}"""
