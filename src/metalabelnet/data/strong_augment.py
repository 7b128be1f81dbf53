"""The strong view: a sample changed as much as a person would still recognise it.

Beside the weak view of a batch (`augment`) a method may ask for this one, and have its classifier say the same of
both. As there, what is random is drawn first, fifteen numbers a sample, and what is done follows from its numbers
alone, for the whole batch at once and with nothing read back to the host.

    moved     shifted, turned, slanted and scaled by one affine map, pixels in between interpolated, black outside
    mirrored  where the weak view is, and only there: a digit upside down is another one
    colours   contrast and brightness, and a factor for each channel (in images with several)
    cut out   a square at a random place, grey

Images alone have one: nothing that could be done to any table keeps its meaning.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples

NUMBERS = 15
LEVELS = 1 << 16  # what is drawn are whole numbers below it, so that a plan has one type
SHIFT = 1 / 6  # of the side: 1 pixel of 8, 5 of 32
TURN = math.pi / 9
SLANT = 0.2
SCALE = 0.2  # in logarithms
CONTRAST, BRIGHTNESS, COLOUR = 0.4, 0.3, 0.2
CUT = 0.5  # of the side, at most


def has_strong_view(x: Samples) -> bool:
    """Whether such samples have a strong view: images of bytes."""
    return x.ndim == 4 and x.dtype == torch.uint8


def draw_strong(count: int, generator: torch.Generator) -> Tensor:
    """How each of so many samples is changed: (15, count) whole numbers."""
    return torch.randint(0, LEVELS, (NUMBERS, count), generator=generator)


def strong(x: Tensor, how: Tensor, *, flips: bool, dtype: torch.dtype) -> Tensor:
    """The strong view of images of bytes, as a network reads it: in [−1, 1]."""
    u = (how.to(dtype) + 0.5) / LEVELS  # in (0, 1)
    moved = _moved(x, u[:7], flips=flips)
    return _cut(_coloured(moved, u[7:12]), u[12:15])


def _moved(x: Tensor, u: Tensor, *, flips: bool) -> Tensor:
    """The images under an affine map, scaled to [−1, 1]."""
    height, width = x.shape[2:]
    down, right, turn, slant, scale, upside_down, mirrored = u[..., None, None]
    angle, scale = TURN * (2 * turn - 1), torch.exp(SCALE * (2 * scale - 1))
    along, across = torch.cos(angle) * scale, torch.sin(angle) * scale
    i = torch.arange(height, device=x.device, dtype=u.dtype)[:, None] - (height - 1) / 2
    j = torch.arange(width, device=x.device, dtype=u.dtype) - (width - 1) / 2
    i, j = i[None], j[None, None]
    if flips:
        i, j = torch.where(upside_down > 0.5, -i, i), torch.where(mirrored > 0.5, -j, j)
    j = j + SLANT * (2 * slant - 1) * i
    rows = along * i - across * j + height * SHIFT * (2 * down - 1) + (height - 1) / 2
    columns = across * i + along * j + width * SHIFT * (2 * right - 1) + (width - 1) / 2
    top, left = rows.floor(), columns.floor()
    below, beside = rows - top, columns - left
    top, left = top.long(), left.long()
    pixels = (
        ((1 - below) * (1 - beside))[:, None] * _pixels(x, top, left)
        + ((1 - below) * beside)[:, None] * _pixels(x, top, left + 1)
        + (below * (1 - beside))[:, None] * _pixels(x, top + 1, left)
        + (below * beside)[:, None] * _pixels(x, top + 1, left + 1)
    )
    scaled: Tensor = pixels / 127.5 - 1
    return scaled


def _pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels at these places (N, height, width), black outside the image."""
    height, width = x.shape[2:]
    samples = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found = x[samples, channels, rows.clamp(0, height - 1)[:, None], columns.clamp(0, width - 1)[:, None]]
    return torch.where(inside[:, None], found, 0)


def _coloured(x: Tensor, u: Tensor) -> Tensor:
    """Other contrast and brightness, and a factor for each channel: as bytes would, values end at −1 and 1."""
    contrast, brightness, *_ = u[..., None, None, None]
    x = (1 + CONTRAST * (2 * contrast - 1)) * x + BRIGHTNESS * (2 * brightness - 1)
    if x.shape[1] == 3:
        light = 1 + COLOUR * (2 * u[2:5].T[..., None, None] - 1)
        x = (x + 1) * light - 1
    return x.clamp(-1, 1)


def _cut(x: Tensor, u: Tensor) -> Tensor:
    """Grey in a square of up to half the side, its centre anywhere in the image."""
    height, width = x.shape[2:]
    down, right, side = u[..., None, None, None]
    i = torch.arange(height, device=x.device)[:, None] + 0.5
    j = torch.arange(width, device=x.device) + 0.5
    half = CUT / 2 * side
    hit = ((i - height * down).abs() < half * height) & ((j - width * right).abs() < half * width)
    return torch.where(hit, 0.0, x)
