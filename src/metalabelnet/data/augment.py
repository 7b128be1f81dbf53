"""Random crops and flips of a whole batch at once, on the device where the batch is.

What is random is drawn first, four small numbers a sample; what is done with a sample follows from its numbers alone.
One index picks every pixel of every sample: no loop over samples and nothing read back to the host, so that
the processor never waits for the card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


PAD = 4


def draw(count: int, generator: torch.Generator, pad: int = PAD) -> Tensor:
    """How each of so many samples is cut and turned: (4, count) with top, left, upside down, mirrored."""
    if pad < 0:
        raise InputError(f"a padding of {pad} pixels is not 0 or more")
    places = torch.randint(0, 2 * pad + 1, (2, count), generator=generator)
    return torch.cat([places, torch.randint(0, 2, (2, count), generator=generator)])


def none(x: Tensor, how: Tensor) -> Tensor:  # noqa: ARG001 (the table's signature)
    """The samples as they are, images or tables."""
    return x


def crop(x: Tensor, how: Tensor, pad: int = PAD) -> Tensor:
    """Each image padded with black on every side and cut back to its size at a random place."""
    _check(x)
    top, left, _, _ = how[..., None]
    return _window(x, _run(top - pad, x.shape[2]), _run(left - pad, x.shape[3]))


def flip_crop(x: Tensor, how: Tensor, pad: int = PAD) -> Tensor:
    """A random crop, mirrored left to right and top to bottom, each with probability one half.

    The paper flips both ways. The padding is the same on every side, so it does not matter whether an image
    is flipped before it is padded and cut or afterwards.
    """
    _check(x)
    top, left, upside_down, mirrored = how[..., None]
    rows, columns = _run(top - pad, x.shape[2]), _run(left - pad, x.shape[3])
    return _window(
        x,
        torch.where(upside_down > 0, rows.flip(1), rows),
        torch.where(mirrored > 0, columns.flip(1), columns),
    )


AUGMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": none,
    "crop": crop,
    "flip-crop": flip_crop,
}


def _check(x: Tensor) -> None:
    if x.ndim != 4 or x.dtype != torch.uint8:
        raise InputError(
            f"cropping and flipping need uint8 images (N, channels, height, width), "
            f"not {x.dtype} of shape {tuple(x.shape)}; use the augmentation 'none'"
        )


def _run(start: Tensor, length: int) -> Tensor:
    """(N, length): the numbers from each start on."""
    return start + torch.arange(length, device=start.device)


def _window(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels at these rows (N, height) and columns (N, width), black outside the image.

    Black is 0 here: the authors pad before images are scaled to [−1, 1], where black is −1.
    """
    height, width = x.shape[2:]
    samples = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    rows, columns = rows[:, None, :, None], columns[:, None, None, :]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixels = x[samples, channels, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside, pixels, 0)
