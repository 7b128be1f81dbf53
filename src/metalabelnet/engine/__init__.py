"""Execution of a method's steps: eagerly, or traced, compiled and replayed. Both compute the same values."""

from __future__ import annotations

from metalabelnet.engine.cuda import tf32_and_cudnn_benchmark, wait_for_device, without_cudnn_benchmark
from metalabelnet.engine.engine import Engine, EngineFallback

__all__ = [
    "Engine",
    "EngineFallback",
    "tf32_and_cudnn_benchmark",
    "wait_for_device",
    "without_cudnn_benchmark",
]
