"""Max pooling by windows that do not overlap, in kernels that others can be joined to.

Every pixel asks its window whether it was the largest, and the window remembers which one was. The usual way scatters
into zeros, which no other kernel can be joined to.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metalabelnet.engine.materialize import kept


class Pooled(NamedTuple):
    """A pooling by windows that do not overlap: its input, its output, and which pixel of each window was the largest.

    `which` counts the pixels of a window row by row, in bytes; `indices` is the same as PyTorch counts.
    """

    x: Tensor
    y: Tensor
    which: Tensor
    indices: Tensor
    window: tuple[int, int]


def max_pool(x: Tensor, window: tuple[int, int]) -> Pooled:
    """The largest pixel of every window, the first of equals, and not-a-number before all."""
    high, wide = window
    y, which = x[..., ::high, ::wide], torch.zeros((), dtype=torch.int8, device=x.device)
    for number, pixel in enumerate(_pixels(x, window)[1:], 1):
        larger = (pixel > y) | pixel.isnan()
        y, which = torch.where(larger, pixel, y), torch.where(larger, number, which).to(torch.int8)
    y, which = kept(y), kept(which)
    rows = torch.arange(y.shape[-2], device=x.device)[:, None] * high + which // wide
    columns = torch.arange(y.shape[-1], device=x.device) * wide + which % wide
    return Pooled(x=x, y=y, which=which, indices=rows * x.shape[-1] + columns, window=window)


def spread(by_window: Tensor, pooled: Pooled) -> Tensor:
    """The gradient of each pixel: its window's, if the window's largest is this pixel."""
    high, wide = pooled.window
    # Every pixel as (row of windows, row within the window, column of windows, column within it).
    here = torch.arange(high * wide, dtype=torch.int8, device=by_window.device).view(high, 1, wide)
    largest = pooled.which[..., :, None, :, None] == here
    by_pixel = torch.where(largest, by_window[..., :, None, :, None], 0.0).reshape(pooled.x.shape)
    last = by_pixel.ndim == 4 and pooled.x.is_contiguous(memory_format=torch.channels_last)  # autograd would ask for it
    return by_pixel.contiguous(memory_format=torch.channels_last) if last else by_pixel


def chosen(x: Tensor, pooled: Pooled) -> Tensor:
    """Of every window of x the pixel that was the largest in the pooling."""
    first, *others = _pixels(x, pooled.window)
    for number, pixel in enumerate(others, 1):
        first = torch.where(pooled.which == number, pixel, first)
    return first


def _pixels(x: Tensor, window: tuple[int, int]) -> list[Tensor]:
    """The pixels of all windows, one of each window at a time, row by row."""
    high, wide = window
    return [x[..., row::high, column::wide] for row in range(high) for column in range(wide)]
