"""Running a method's steps: as they are written, or recorded, compiled and replayed. Both do the same."""

from __future__ import annotations

from metalabelnet.engine.engine import Engine, EngineFallback, drained, tensor_cores, untried

__all__ = ["Engine", "EngineFallback", "drained", "tensor_cores", "untried"]
