"""Rewrite: max pooling over windows that do not overlap, in operations that Inductor can fuse.

Each window stores the position of its maximum. In the backward pass, each pixel compares its own position with it.
PyTorch's backward pass scatters into zeros, which cannot be fused with other kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metalabelnet.engine.materialize import materialize


class PooledWindows(NamedTuple):
    """A max pooling over windows that do not overlap.

    `argmax` is the position of the maximum within its window, counted row by row, in int8; `indices` is the same as
    PyTorch counts, within the image.
    """

    x: Tensor
    y: Tensor
    argmax: Tensor
    indices: Tensor
    window: tuple[int, int]


def max_pool(x: Tensor, window: tuple[int, int]) -> PooledWindows:
    """Return the maximum of every window: the first among equals, and NaN if there is one."""
    height, width = window
    y, argmax = x[..., ::height, ::width], torch.zeros((), dtype=torch.int8, device=x.device)
    for position, pixel in enumerate(_pixels_by_position(x, window)[1:], 1):
        larger = (pixel > y) | pixel.isnan()
        y, argmax = torch.where(larger, pixel, y), torch.where(larger, position, argmax).to(torch.int8)
    y, argmax = materialize(y), materialize(argmax)
    rows = torch.arange(y.shape[-2], device=x.device)[:, None] * height + argmax // width
    columns = torch.arange(y.shape[-1], device=x.device) * width + argmax % width
    return PooledWindows(x=x, y=y, argmax=argmax, indices=rows * x.shape[-1] + columns, window=window)


def max_pool_backward(window_grad: Tensor, pooled: PooledWindows) -> Tensor:
    """Return the gradient of each pixel: its window's if it is the maximum, else zero."""
    height, width = pooled.window
    # Dimensions of a pixel: row of windows, row within the window, column of windows, column within the window.
    position = torch.arange(height * width, dtype=torch.int8, device=window_grad.device).view(height, 1, width)
    is_max = pooled.argmax[..., :, None, :, None] == position
    grad = torch.where(is_max, window_grad[..., :, None, :, None], 0.0).reshape(pooled.x.shape)
    # Autograd would convert the gradient to the input's memory format.
    is_channels_last = grad.ndim == 4 and pooled.x.is_contiguous(memory_format=torch.channels_last)
    return grad.contiguous(memory_format=torch.channels_last) if is_channels_last else grad


def gather_maxima(x: Tensor, pooled: PooledWindows) -> Tensor:
    """Return, from every window of x, the pixel that was the maximum in the pooling."""
    result, *others = _pixels_by_position(x, pooled.window)
    for position, pixel in enumerate(others, 1):
        result = torch.where(pooled.argmax == position, pixel, result)
    return result


def _pixels_by_position(x: Tensor, window: tuple[int, int]) -> list[Tensor]:
    """Return, for each position within a window, that pixel of all windows."""
    height, width = window
    return [x[..., row::height, column::width] for row in range(height) for column in range(width)]
