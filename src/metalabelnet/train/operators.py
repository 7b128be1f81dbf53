"""Operators written another way, so that what is recorded compiles to fast kernels. Same values.

max pooling, backwards   where windows do not overlap every pixel asks its window whether it was the largest. The
                         usual way scatters into zeros, which no other kernel can be joined to.
convolutions             tensor cores take channels by the eight. Where a layer has other numbers the library pads and
                         cuts in kernels of its own; padded here, that becomes a part of the kernels before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten
EIGHT = 8


def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001 (PyTorch's signature)
    indices: Tensor,
) -> Any:
    """The gradient of each pixel: its window's, if the window's largest is this pixel."""
    high, wide = kernel if len(kernel) == 2 else (*kernel, *kernel)
    height, width = x.shape[-2:]
    apart = tuple(stride or kernel) == tuple(kernel) and not any(padding) and set(dilation) == {1} and not ceil_mode
    if not apart or height % high or width % wide:
        return NotImplemented

    # Every pixel as (row of windows, row within the window, column of windows, column within it).
    here = torch.arange(height * width, device=x.device).view(height // high, high, width // wide, wide)
    largest = indices[..., :, None, :, None] == here
    return torch.where(largest, grad[..., :, None, :, None], 0.0).reshape(x.shape)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001 (PyTorch's signature)
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """A convolution over channels padded with zeros to a multiple of eight."""
    outputs, inputs = weight.shape[:2]
    if transposed or groups != 1 or not (outputs % EIGHT or inputs % EIGHT):
        return NotImplemented
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    bias = None if bias is None else _by_eight(bias, 0)
    y = aten.convolution.default(_by_eight(x, 1), _by_eight(weight, 0, 1), bias, *rest)
    return y[:, :outputs]


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,  # noqa: ARG001 (likewise)
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001 (PyTorch's signature)
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """Its gradients, padded likewise; the bias has the sum, which needs no convolution."""
    outputs, inputs = weight.shape[:2]
    if transposed or groups != 1 or not (outputs % EIGHT or inputs % EIGHT):
        return NotImplemented
    rest = (stride, padding, dilation, transposed, output_padding, groups, [wanted[0], wanted[1], False])
    by_x, by_weight, _ = aten.convolution_backward.default(
        _by_eight(grad, 1), _by_eight(x, 1), _by_eight(weight, 0, 1), None, *rest
    )
    by_bias = grad.sum([d for d in range(grad.ndim) if d != 1]) if wanted[2] else None
    by_x = by_x[:, :inputs] if wanted[0] else None
    return by_x, by_weight[:outputs, :inputs] if wanted[1] else None, by_bias


def _by_eight(tensor: Tensor, *dims: int) -> Tensor:
    """The tensor with zeros behind these dimensions, up to a multiple of eight."""
    widths = [0] * (2 * tensor.ndim)
    for d in dims:
        widths[2 * (tensor.ndim - 1 - d) + 1] = -tensor.shape[d] % EIGHT
    return pad(tensor, widths) if any(widths) else tensor


def table(*, tensor_cores: bool) -> dict[Any, Callable[..., Any]]:
    """What is recorded in place of PyTorch's operators."""
    written: dict[Any, Callable[..., Any]] = {aten.max_pool2d_with_indices_backward.default: max_pool2d_backward}
    if tensor_cores:
        written |= {
            aten.convolution.default: convolution,
            aten.convolution_backward.default: convolution_backward,
        }
    return written
