"""CUDA kernels compiled by NVRTC (the runtime compiler that PyTorch ships), cached on disk, launched by the driver."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.atomic_write import write_atomically
from metalabelnet.engine import torch_private

if TYPE_CHECKING:
    from collections.abc import Sequence

# Values of the driver API's enumerations.
FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
TENSOR_MAP_INTERLEAVE_NONE = 0
TENSOR_MAP_SWIZZLE_128B = 3
TENSOR_MAP_L2_PROMOTION_128B = 2
TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0  # out-of-bounds elements are zero

TENSOR_MAP_ALIGNMENT = 64  # bytes


class TensorMap(ctypes.Structure):
    """A CUtensorMap: the layout of a tensor in global memory, for TMA loads. Its content is opaque."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


class Kernel:
    """A compiled kernel on one device.

    Parameters
    ----------
    source : str
        CUDA C++ source.
    name : str
        Name expression of the kernel, with its template arguments.
    shared_bytes : int
        Dynamic shared memory of a CTA.
    device : torch.device
        Where it is launched.
    """

    def __init__(self, source: str, name: str, shared_bytes: int, device: torch.device) -> None:
        binary, mangled_name = _load_or_compile(source, name)
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._shared_bytes, self._device = shared_bytes, device
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # creates the driver's context
            _check(_driver().cuModuleLoadData(ctypes.byref(module), binary))
            _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), module, mangled_name.encode()))
            attribute = FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(_driver().cuFuncSetAttribute(self._function, attribute, shared_bytes))

    def __call__(self, grid: tuple[int, int], threads: int, *args: Tensor | TensorMap | int | None) -> None:
        """Launch the kernel on the current stream."""
        values = [_to_ctypes(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        dimensions = grid[0], grid[1], 1, threads, 1, 1
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            _check(_driver().cuLaunchKernel(self._function, *dimensions, self._shared_bytes, stream, pointers, None))


def make_tensor_map(x: Tensor, box: Sequence[int]) -> TensorMap:
    """Return the tensor map of a contiguous bfloat16 tensor, for TMA loads of boxes of this shape.

    Parts of a box outside the tensor are filled with zeros. A row of the last dimension is 64 values (128 bytes), and
    is swizzled in shared memory.
    """
    assert x.is_contiguous()
    assert x.dtype == torch.bfloat16
    buffer = (ctypes.c_uint8 * (ctypes.sizeof(TensorMap) + TENSOR_MAP_ALIGNMENT))()
    tensor_map = TensorMap.from_buffer(buffer, -ctypes.addressof(buffer) % TENSOR_MAP_ALIGNMENT)
    rank = x.ndim
    sizes = (ctypes.c_uint64 * rank)(*reversed(x.shape))  # the driver expects the fastest dimension first
    strides = (ctypes.c_uint64 * (rank - 1))(*[2 * stride for stride in reversed(x.stride()[:-1])])  # in bytes
    box_sizes = (ctypes.c_uint32 * rank)(*reversed(box))
    element_strides = (ctypes.c_uint32 * rank)(*[1] * rank)
    _check(
        _driver().cuTensorMapEncodeTiled(
            ctypes.byref(tensor_map),
            TENSOR_MAP_DATA_TYPE_BFLOAT16,
            rank,
            ctypes.c_void_p(x.data_ptr()),
            sizes,
            strides,
            box_sizes,
            element_strides,
            TENSOR_MAP_INTERLEAVE_NONE,
            TENSOR_MAP_SWIZZLE_128B,
            TENSOR_MAP_L2_PROMOTION_128B,
            TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return tensor_map


def _to_ctypes(arg: Tensor | TensorMap | int | None) -> Any:
    if arg is None or isinstance(arg, Tensor):
        return ctypes.c_void_p(None if arg is None else arg.data_ptr())
    return arg if isinstance(arg, TensorMap) else ctypes.c_int(arg)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int) -> None:
    if result:
        raise RuntimeError(f"the CUDA driver returned error {result}")


def _load_or_compile(source: str, name: str) -> tuple[bytes, str]:
    """Return the kernel's cubin and its mangled name, from the disk cache if it was compiled before."""
    nvrtc_compile = torch_private.load("nvrtc_compile")
    digest = hashlib.sha256("\n".join([source, name, str(torch.__version__), str(torch.version.cuda)]).encode())
    folder, file = _cache_folder(), f"{digest.hexdigest()}.cubin"
    content = None if folder is None else _read_own_file(folder / file)
    if content is not None:
        mangled, _, binary = content.partition(b"\n")
        return binary, mangled.decode()
    binary, mangled_name = nvrtc_compile(source, name, "90a", nvcc_options=["--std=c++17"])
    if folder is not None:
        with suppress(OSError):  # a full disk: the kernel is compiled again next time
            write_atomically(folder / file, mangled_name.encode() + b"\n", binary, sync=False)
    return binary, mangled_name


def _cache_folder() -> Path | None:
    """Return the folder of compiled kernels, which only this user can write; None if there cannot be one.

    It is $XDG_CACHE_HOME/metalabelnet/kernels, else ~/.cache/metalabelnet/kernels. A shared temporary folder would let
    other users provide the code that is run on the GPU.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "metalabelnet" / "kernels"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except (OSError, RuntimeError):  # the home is unknown or cannot be written
        return None
    return folder if stat.S_ISDIR(status.st_mode) and _is_own(status) else None


def _read_own_file(path: Path) -> bytes | None:
    """Return the content of a regular file that only this user can write; None for any other, or if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        return file.read() if stat.S_ISREG(status.st_mode) and _is_own(status) else None


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
