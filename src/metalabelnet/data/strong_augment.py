"""Strong augmentation of image batches, for consistency losses.

A method may request a strongly augmented copy of each training sample beside the weakly augmented one (`augment`). As
there, all random numbers are drawn first (15 per sample), and the augmentation is a deterministic function of them,
computed for the whole batch on its device without synchronizing with the host.

    affine    shift, rotation, shear and scale as one map, bilinear interpolation, black outside the image
    flips     only if the weak augmentation flips: some classes change when flipped (digits)
    color     contrast and brightness, and a gain per channel for RGB images
    cutout    a gray square at a random place (DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552)

Only uint8 images can be augmented: no transformation is label-preserving for every table.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples

DRAWS_PER_SAMPLE = 15
DRAW_LEVELS = 1 << 16  # draws are integers below this, so that a batch plan is int64 throughout
MAX_SHIFT = 1 / 6  # of the side: 1 pixel of 8, 5 of 32
MAX_ROTATION = math.pi / 9  # radians
MAX_SHEAR = 0.2
MAX_LOG_SCALE = 0.2
MAX_CONTRAST, MAX_BRIGHTNESS, MAX_CHANNEL_GAIN = 0.4, 0.3, 0.2
MAX_CUTOUT = 0.5  # of the side


def can_augment_strongly(x: Samples) -> bool:
    """Whether these samples have a strong augmentation: uint8 images."""
    return x.ndim == 4 and x.dtype == torch.uint8


def draw_strong_augmentation(count: int, generator: torch.Generator) -> Tensor:
    """Draw the random numbers for `count` samples: (15, count) integers."""
    return torch.randint(0, DRAW_LEVELS, (DRAWS_PER_SAMPLE, count), generator=generator)


def augment_strongly(x: Tensor, draws: Tensor, *, flips: bool, dtype: torch.dtype) -> Tensor:
    """Return strongly augmented uint8 images as network input, in [−1, 1]."""
    u = (draws.to(dtype) + 0.5) / DRAW_LEVELS  # in (0, 1)
    return _cutout(_jitter_color(_warp(x, u[:7], flips=flips), u[7:12]), u[12:15])


def _warp(x: Tensor, u: Tensor, *, flips: bool) -> Tensor:
    """Apply a random affine map to the images and scale them to [−1, 1]."""
    height, width = x.shape[2:]
    down, right, rotation, shear, scale, vertical_flip, horizontal_flip = u[..., None, None]
    angle, scale = MAX_ROTATION * (2 * rotation - 1), torch.exp(MAX_LOG_SCALE * (2 * scale - 1))
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    i = torch.arange(height, device=x.device, dtype=u.dtype)[:, None] - (height - 1) / 2
    j = torch.arange(width, device=x.device, dtype=u.dtype) - (width - 1) / 2
    i, j = i[None], j[None, None]
    if flips:
        i, j = torch.where(vertical_flip > 0.5, -i, i), torch.where(horizontal_flip > 0.5, -j, j)
    j = j + MAX_SHEAR * (2 * shear - 1) * i
    rows = cos * i - sin * j + height * MAX_SHIFT * (2 * down - 1) + (height - 1) / 2
    columns = sin * i + cos * j + width * MAX_SHIFT * (2 * right - 1) + (width - 1) / 2
    top, left = rows.floor(), columns.floor()
    row_weight, column_weight = rows - top, columns - left
    top, left = top.long(), left.long()
    pixels = (
        ((1 - row_weight) * (1 - column_weight))[:, None] * _pixels(x, top, left)
        + ((1 - row_weight) * column_weight)[:, None] * _pixels(x, top, left + 1)
        + (row_weight * (1 - column_weight))[:, None] * _pixels(x, top + 1, left)
        + (row_weight * column_weight)[:, None] * _pixels(x, top + 1, left + 1)
    )
    scaled: Tensor = pixels / 127.5 - 1
    return scaled


def _pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels at these coordinates (N, height, width), black outside the image."""
    height, width = x.shape[2:]
    samples = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    values = x[samples, channels, rows.clamp(0, height - 1)[:, None], columns.clamp(0, width - 1)[:, None]]
    return torch.where(inside[:, None], values, 0)


def _jitter_color(x: Tensor, u: Tensor) -> Tensor:
    """Change contrast and brightness, and the gain of each channel of RGB images. Values are clipped to [−1, 1]."""
    contrast, brightness, *_ = u[..., None, None, None]
    x = (1 + MAX_CONTRAST * (2 * contrast - 1)) * x + MAX_BRIGHTNESS * (2 * brightness - 1)
    if x.shape[1] == 3:
        gain = 1 + MAX_CHANNEL_GAIN * (2 * u[2:5].T[..., None, None] - 1)
        x = (x + 1) * gain - 1
    return x.clamp(-1, 1)


def _cutout(x: Tensor, u: Tensor) -> Tensor:
    """Set a square of up to half the side to gray; its center is uniform over the image."""
    height, width = x.shape[2:]
    down, right, side = u[..., None, None, None]
    i = torch.arange(height, device=x.device)[:, None] + 0.5
    j = torch.arange(width, device=x.device) + 0.5
    half = MAX_CUTOUT / 2 * side
    covered = ((i - height * down).abs() < half * height) & ((j - width * right).abs() < half * width)
    return torch.where(covered, 0.0, x)
