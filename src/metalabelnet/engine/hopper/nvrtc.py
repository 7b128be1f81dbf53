"""Kernels of our own: compiled by the library that comes with PyTorch, kept on disk, started on the current stream."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class Map(ctypes.Structure):
    """How a tensor lies in memory, for kernels that bring boxes of it: a value only the driver can read."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


class Kernel:
    """One kernel on one card: `name` is an expression that names a template of the source with its arguments."""

    def __init__(self, source: str, name: str, shared: int, device: torch.device) -> None:
        binary, mangled = _compiled(source, name)
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._shared, self._device = shared, device
        most_shared_memory = 8
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # the driver's context must be there
            _check(_driver().cuModuleLoadData(ctypes.byref(module), binary))
            _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), module, mangled.encode()))
            _check(_driver().cuFuncSetAttribute(self._function, most_shared_memory, shared))

    def __call__(self, grid: tuple[int, int], threads: int, *args: Tensor | Map | int | None) -> None:
        """Start it on the current stream."""
        values = [_value(arg) for arg in args]
        places = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        shape = grid[0], grid[1], 1, threads, 1, 1
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            _check(_driver().cuLaunchKernel(self._function, *shape, self._shared, stream, places, None))


def boxes(x: Tensor, box: Sequence[int]) -> Map:
    """A map of a tensor in bfloat16 without gaps, for boxes of this shape that may reach beyond its ends: zeros there.

    A row of the last dimension is 64 numbers, and lies swizzled in shared memory.
    """
    assert x.is_contiguous()
    assert x.dtype == torch.bfloat16
    bfloat16, swizzle_128_bytes, fetch_128_bytes = 9, 3, 2
    room = (ctypes.c_uint8 * (ctypes.sizeof(Map) + 64))()
    found = Map.from_buffer(room, -ctypes.addressof(room) % 64)
    count = x.ndim
    sizes = (ctypes.c_uint64 * count)(*reversed(x.shape))
    strides = (ctypes.c_uint64 * (count - 1))(*[2 * stride for stride in reversed(x.stride()[:-1])])
    shape, every = (ctypes.c_uint32 * count)(*reversed(box)), (ctypes.c_uint32 * count)(*[1] * count)
    options = 0, swizzle_128_bytes, fetch_128_bytes, 0
    where = ctypes.c_void_p(x.data_ptr())
    _check(
        _driver().cuTensorMapEncodeTiled(
            ctypes.byref(found), bfloat16, count, where, sizes, strides, shape, every, *options
        )
    )
    return found


def _value(arg: Tensor | Map | int | None) -> Any:
    if arg is None or isinstance(arg, Tensor):
        return ctypes.c_void_p(None if arg is None else arg.data_ptr())
    return arg if isinstance(arg, Map) else ctypes.c_int(arg)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int) -> None:
    if result:
        raise RuntimeError(f"CUDA's driver says {result}")


def _compiled(source: str, name: str) -> tuple[bytes, str]:
    """The kernel's code and the name it has there, compiled now or before."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.cuda._utils import _nvrtc_compile

    what = hashlib.sha256("\n".join([source, name, str(torch.__version__), str(torch.version.cuda)]).encode())
    place = Path(cache_dir()) / "metalabelnet" / f"{what.hexdigest()}.cubin"
    if place.exists():
        mangled, _, binary = place.read_bytes().partition(b"\n")
        return binary, mangled.decode()
    binary, mangled_name = _nvrtc_compile(source, name, "90a", nvcc_options=["--std=c++17"])
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, written = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(mangled_name.encode() + b"\n" + binary)
    Path(written).replace(place)
    return binary, mangled_name
