"""A mark in a recording: the compiler is to have these numbers stored, however quick to compute.

A compiler that joins kernels computes again what costs little, in every kernel that reads it. Where that is done for
every pixel (a channel's constants, the pixel that won a window) reading is cheaper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def kept(x: Tensor) -> Tensor:
    """The same numbers."""
    same: Tensor = _kept(x)
    return same


@torch.library.custom_op("metalabelnet::kept", mutates_args=())
def _kept(x: Tensor) -> Tensor:
    return x.clone()


@_kept.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def teach_compiler() -> None:
    """Tell inductor what the mark means."""
    from torch._inductor.ir import ExternKernel, get_stride_order
    from torch._inductor.lowering import register_lowering
    from torch._inductor.virtualized import V

    def store(x: Any) -> Any:
        x.realize()
        # In the order the recording has them: left to itself the compiler may turn channels last into channels first.
        order = get_stride_order(V.graph.current_node.meta["val"].stride())
        return ExternKernel.require_stride_order(x, order)

    register_lowering(torch.ops.metalabelnet.kept.default)(store)
