"""Random crops and flips of a whole batch at once, on the device where the batch is.

One index picks every pixel of every sample: no loop over samples and nothing read back to the host, so that
the processor never waits for the card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the usual name)

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


def none(x: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001 (the table's signature)
    """The samples as they are, images or tables."""
    return x


def crop(x: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Each image padded with black on every side and cut back to its size at a random place."""
    top, left = _corners(x, generator, pad)
    return _window(x, pad, _run(top, x.shape[2]), _run(left, x.shape[3]))


def flip_crop(x: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """A random crop, mirrored left to right and top to bottom, each with probability one half.

    The paper flips both ways. The padding is the same on every side, so it does not matter whether an image
    is flipped before it is padded and cut or afterwards.
    """
    top, left = _corners(x, generator, pad)
    upside_down, mirrored = _coin(x, generator), _coin(x, generator)
    rows, columns = _run(top, x.shape[2]), _run(left, x.shape[3])
    return _window(
        x,
        pad,
        torch.where(upside_down, rows.flip(1), rows),
        torch.where(mirrored, columns.flip(1), columns),
    )


AUGMENTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": none,
    "crop": crop,
    "flip-crop": flip_crop,
}


def _corners(x: Tensor, generator: torch.Generator, pad: int) -> tuple[Tensor, Tensor]:
    """The top row and left column of each sample's window in its padded image."""
    if x.ndim != 4 or x.dtype != torch.uint8:
        raise InputError(
            f"cropping and flipping need uint8 images (N, channels, height, width), "
            f"not {x.dtype} of shape {tuple(x.shape)}; use the augmentation 'none'"
        )
    if pad < 0:
        raise InputError(f"a padding of {pad} pixels is not 0 or more")
    top, left = (torch.randint(0, 2 * pad + 1, (len(x), 1), generator=generator, device=x.device) for _ in range(2))
    return top, left


def _coin(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (len(x), 1), generator=generator, device=x.device).bool()


def _run(start: Tensor, length: int) -> Tensor:
    """(N, length): the numbers from each start on."""
    return start + torch.arange(length, device=start.device)


def _window(x: Tensor, pad: int, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels at these rows (N, height) and columns (N, width) of the padded images.

    Padded with 0, black: the authors pad before images are scaled to [−1, 1], where black is −1.
    """
    samples = torch.arange(len(x), device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[:, None, None]
    padded = F.pad(x, (pad, pad, pad, pad))
    return padded[samples, channels, rows[:, None, :, None], columns[:, None, None, :]]
