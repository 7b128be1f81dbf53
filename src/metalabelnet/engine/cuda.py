"""CUDA helpers of the engine: cuDNN benchmark mode, CUDA graph capture, waiting for the device."""

from __future__ import annotations

import platform
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

WARMUP_RUNS = 3  # before a capture: libraries allocate workspaces on first use, which a capture does not allow


@contextmanager
def tf32_and_cudnn_benchmark() -> Iterator[None]:
    """Allow TF32 for float32 products on CUDA and turn on cuDNN benchmark mode; restore both settings at the end."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@contextmanager
def exhaustive_cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN benchmark mode try every algorithm of a convolution instead of the first ten."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark_limit = cudnn.benchmark_limit, 0
    try:
        yield
    finally:
        cudnn.benchmark_limit = before


@contextmanager
def without_cudnn_benchmark() -> Iterator[None]:
    """Turn cuDNN benchmark mode off: for a few passes, trying all algorithms costs more than the best one saves."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, False
    try:
        yield
    finally:
        cudnn.benchmark = before


def capture_cuda_graph(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Any]]:
    """Capture all kernels of `run` as one CUDA graph; return the tensor it writes its result to, and the replay."""
    # Each capture has its own stream. Library workspaces belong to the stream of the capture, and two graphs that are
    # replayed at the same time must not share them.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = run()
    return result, graph.replay


def wait_for_device(device: torch.device) -> Iterator[None]:
    """Yield until the work queued on a CUDA device is done, so that other runs can queue theirs meanwhile."""
    if device.type == "cuda":
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        while not done.query():  # type: ignore[no-untyped-call]
            yield


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the CPU architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
