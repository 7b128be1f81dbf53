"""NVRTC kernels without a GPU: compiled once, cached on disk, launched with the arguments the driver expects."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from metalabelnet.engine.hopper import nvrtc

if TYPE_CHECKING:
    from pathlib import Path


class FakeDriver:
    """Stores the arguments of each call, and returns `result`."""

    def __init__(self, result: int = 0) -> None:
        self.result, self.calls = result, dict[str, Any]()

    def cuModuleLoadData(self, module: Any, binary: bytes) -> int:
        self.calls["binary"] = binary
        return self.result

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.calls["name"] = name
        return self.result

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.calls["attribute"] = attribute, value
        return self.result

    def cuLaunchKernel(self, function: Any, *args: Any) -> int:
        *dimensions, stream, pointers, extra = args
        types = ctypes.c_void_p, ctypes.c_int
        values = [ctypes.cast(p, ctypes.POINTER(type_))[0] for p, type_ in zip(pointers, types, strict=True)]
        self.calls["launch"] = dimensions, stream.value, values, extra
        return self.result

    def cuTensorMapEncodeTiled(self, *args: Any) -> int:
        _, dtype, rank, address, sizes, strides, box, *_ = args
        self.calls["map"] = dtype, rank, address.value, list(sizes), list(strides), list(box)
        return self.result


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDriver:
    """A driver and a compiler that need no GPU."""
    fake = FakeDriver()
    monkeypatch.setattr(nvrtc, "_driver", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled: list[str] = []

    def compile_(source: str, name: str, capability: str, nvcc_options: list[str]) -> tuple[bytes, str]:
        assert (capability, nvcc_options) == ("90a", ["--std=c++17"])
        compiled.append(source)
        return b"code\n of " + name.encode(), f"_Z{name}"

    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", compile_)
    fake.calls["compiled"] = compiled
    return fake


GPU = torch.device("cuda", 0)


def test_kernel_is_compiled_once_and_loaded_from_disk(driver: FakeDriver) -> None:
    """Another source or name is another kernel."""
    for _ in range(2):
        nvrtc.Kernel("text", "double<2>", 100, GPU)
        assert (driver.calls["binary"], driver.calls["name"]) == (b"code\n of double<2>", b"_Zdouble<2>")
    nvrtc.Kernel("text", "double<3>", 100, GPU)
    nvrtc.Kernel("other text", "double<2>", 100, GPU)
    assert driver.calls["compiled"] == ["text", "text", "other text"]


def test_kernel_is_launched_on_the_current_stream(driver: FakeDriver) -> None:
    """Tensors are passed as addresses, numbers as they are."""
    kernel = nvrtc.Kernel("text", "double", 100, GPU)
    assert driver.calls["attribute"] == (8, 100)
    x = torch.zeros(4)
    kernel((5, 2), 128, x, 42)
    assert driver.calls["launch"] == ([5, 2, 1, 128, 1, 1, 100], 7, [x.data_ptr(), 42], None)


def test_tensor_map_has_the_fastest_dimension_first(driver: FakeDriver) -> None:
    """Strides are in bytes, without that of the fastest dimension."""
    x = torch.zeros(2, 8, 16, 64, dtype=torch.bfloat16)
    assert isinstance(nvrtc.make_tensor_map(x, [1, 10, 18, 64]), nvrtc.TensorMap)
    sizes, strides = [64, 16, 8, 2], [128, 2048, 16384]
    assert driver.calls["map"] == (9, 4, x.data_ptr(), sizes, strides, [64, 18, 10, 1])


def test_driver_error_is_raised(driver: FakeDriver) -> None:
    """The engine falls back with this reason."""
    driver.result = 201
    with pytest.raises(RuntimeError, match="driver returned error 201"):
        nvrtc.Kernel("text", "double", 100, GPU)
