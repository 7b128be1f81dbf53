"""Kernels of our own, with no card: compiled once and kept on disk, started with what the driver asks for."""

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


class Driver:
    """Notes what it is asked to do; a launch notes the values its arguments point to."""

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.calls = answer, dict[str, Any]()

    def cuModuleLoadData(self, module: Any, binary: bytes) -> int:
        self.calls["binary"] = binary
        return self.answer

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.calls["name"] = name
        return self.answer

    def cuFuncSetAttribute(self, function: Any, what: int, value: int) -> int:
        self.calls["shared"] = what, value
        return self.answer

    def cuLaunchKernel(self, function: Any, *args: Any) -> int:
        *shape, stream, places, extra = args
        kinds = ctypes.c_void_p, ctypes.c_int
        found = [ctypes.cast(place, ctypes.POINTER(kind))[0] for place, kind in zip(places, kinds, strict=True)]
        self.calls["launch"] = shape, stream.value, found, extra
        return self.answer

    def cuTensorMapEncodeTiled(self, *args: Any) -> int:
        _, kind, count, where, sizes, strides, box, *_ = args
        self.calls["map"] = kind, count, where.value, list(sizes), list(strides), list(box)
        return self.answer


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    """No card, no compiler."""
    found = Driver()
    monkeypatch.setattr(nvrtc, "_driver", lambda: found)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled: list[str] = []

    def compile_(source: str, name: str, capability: str, nvcc_options: list[str]) -> tuple[bytes, str]:
        assert (capability, nvcc_options) == ("90a", ["--std=c++17"])
        compiled.append(source)
        return b"code\n of " + name.encode(), f"_Z{name}"

    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", compile_)
    found.calls["compiled"] = compiled
    return found


CARD = torch.device("cuda", 0)


def test_a_kernel_is_compiled_once_and_found_on_disk(driver: Driver) -> None:
    """Another source, or another name, is another kernel."""
    for _ in range(2):
        nvrtc.Kernel("text", "double<2>", 100, CARD)
        assert (driver.calls["binary"], driver.calls["name"]) == (b"code\n of double<2>", b"_Zdouble<2>")
    nvrtc.Kernel("text", "double<3>", 100, CARD)
    nvrtc.Kernel("other text", "double<2>", 100, CARD)
    assert driver.calls["compiled"] == ["text", "text", "other text"]


def test_a_kernel_is_started_with_its_arguments(driver: Driver) -> None:
    """Tensors as where they lie, numbers as they are, on the current stream."""
    kernel = nvrtc.Kernel("text", "double", 100, CARD)
    assert driver.calls["shared"] == (8, 100)
    x = torch.zeros(4)
    kernel((5, 2), 128, x, 42)
    assert driver.calls["launch"] == ([5, 2, 1, 128, 1, 1, 100], 7, [x.data_ptr(), 42], None)


def test_a_map_has_the_dimensions_the_other_way_around(driver: Driver) -> None:
    """The driver counts the fastest first, and strides in bytes without it."""
    x = torch.zeros(2, 8, 16, 64, dtype=torch.bfloat16)
    assert isinstance(nvrtc.boxes(x, [1, 10, 18, 64]), nvrtc.Map)
    sizes, strides = [64, 16, 8, 2], [128, 2048, 16384]
    assert driver.calls["map"] == (9, 4, x.data_ptr(), sizes, strides, [64, 18, 10, 1])


def test_what_the_driver_refuses_is_said(driver: Driver) -> None:
    """The engine takes the eager path then, with this as the reason."""
    driver.answer = 201
    with pytest.raises(RuntimeError, match="driver says 201"):
        nvrtc.Kernel("text", "double", 100, CARD)
