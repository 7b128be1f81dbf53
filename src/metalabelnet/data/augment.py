"""Random crops and flips of a whole batch, on the device that holds it.

Random numbers are drawn first, four per sample; the augmentation is a deterministic function of them. One index
operation gathers every pixel of the batch: there is no loop over samples, and the host never waits for the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


PADDING_PIXELS = 4  # on each side of an image before it is cropped


def draw_augmentation(count: int, generator: torch.Generator, padding: int = PADDING_PIXELS) -> Tensor:
    """Draw the random numbers for `count` samples: (4, count) with top, left, vertical flip, horizontal flip."""
    if padding < 0:
        raise InputError(f"padding is {padding} pixels; give 0 or more")
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
    return torch.cat([offsets, torch.randint(0, 2, (2, count), generator=generator)])


def none(x: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG001 (all augmentations share one signature)
    """Return the samples unchanged."""
    return x


def crop(x: Tensor, draws: Tensor, padding: int = PADDING_PIXELS) -> Tensor:
    """Pad each image with black on every side and crop it to its size at a random place."""
    _check_images(x)
    top, left, _, _ = draws[..., None]
    return _gather(x, _coordinates(top - padding, x.shape[2]), _coordinates(left - padding, x.shape[3]))


def flip_crop(x: Tensor, draws: Tensor, padding: int = PADDING_PIXELS) -> Tensor:
    """Crop at random, then flip horizontally and vertically, each with probability ½.

    The paper flips in both directions. The padding is the same on every side, so the order of flip and crop does not
    matter.
    """
    _check_images(x)
    top, left, vertical_flip, horizontal_flip = draws[..., None]
    rows, columns = _coordinates(top - padding, x.shape[2]), _coordinates(left - padding, x.shape[3])
    return _gather(
        x,
        torch.where(vertical_flip > 0, rows.flip(1), rows),
        torch.where(horizontal_flip > 0, columns.flip(1), columns),
    )


def flip(x: Tensor, draws: Tensor) -> Tensor:
    """Flip horizontally with probability ½."""
    _check_images(x)
    return torch.where(draws[3].view(-1, 1, 1, 1) > 0, x.flip(3), x)


AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": none,
    "flip": flip,
    "crop": crop,
    "flip-crop": flip_crop,
}


def _check_images(x: Tensor) -> None:
    if x.ndim != 4 or x.dtype != torch.uint8:
        raise InputError(
            f"crops and flips need uint8 images (N, channels, height, width), "
            f"not {x.dtype} of shape {tuple(x.shape)}; use the augmentation 'none'"
        )


def _coordinates(start: Tensor, length: int) -> Tensor:
    """Return (N, length) consecutive integers from each start."""
    return start + torch.arange(length, device=start.device)


def _gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels at these rows (N, height) and columns (N, width), black outside the image.

    Black is 0: the authors pad before images are scaled to [−1, 1], where black is −1.
    """
    height, width = x.shape[2:]
    samples = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    rows, columns = rows[:, None, :, None], columns[:, None, None, :]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixels = x[samples, channels, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside, pixels, 0)
