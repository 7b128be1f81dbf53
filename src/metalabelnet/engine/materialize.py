"""An operator that makes the compiler store a tensor, however cheap it is to compute.

Inductor fuses kernels and recomputes cheap expressions in every kernel that reads them. For values that every pixel
reads (a channel's constants, the position of a window's maximum), reading the stored value is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metalabelnet.engine import torch_private


def materialize(x: Tensor) -> Tensor:
    """Return the same values, marked to be stored in memory by the compiler."""
    same: Tensor = _materialize(x)
    return same


@torch.library.custom_op("metalabelnet::materialize", mutates_args=())
def _materialize(x: Tensor) -> Tensor:
    return x.clone()


@_materialize.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def register_inductor_lowering() -> None:
    """Define the operator for Inductor."""
    extern_kernel, v = torch_private.load("ExternKernel"), torch_private.load("V")
    get_stride_order = torch_private.load("get_stride_order")

    def store(x: Any) -> Any:
        x.realize()
        # Keep the strides of the traced graph: Inductor may otherwise turn channels last into channels first.
        order = get_stride_order(v.graph.current_node.meta["val"].stride())
        return extern_kernel.require_stride_order(x, order)

    torch_private.load("register_lowering")(torch.ops.metalabelnet.materialize.default)(store)
