"""What a sample looks like: a picture, a text, or a row of cells, by its position in the data and by nothing else.

No name or path comes from outside. Pictures are decoded and written anew, so that of a file that is no picture nothing
is ever seen, and of one that is nothing but its pixels.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from metalabelnet.data.encoders import images
from metalabelnet.data.encoders.kinds import reason
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from metalabelnet.data import Rows

MOST_CELLS = 60
SIZES = {"small": 256, "large": 1024}  # of the longer side, in pixels


class Items(Protocol):
    """Samples by position."""

    def __getitem__(self, position: int, /) -> Any:
        """One of them."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The samples of the data. `items` are paths, cells or tensors, as the kind says."""

    kind: str  # image, text, table
    items: Items
    columns: tuple[str, ...] = field(default=())

    def picture(self, position: int, size: str) -> tuple[bytes, str]:
        """The picture and its media type; `InputError` says why there is none."""
        from PIL import Image

        item, side = self.items[position], SIZES[size]
        if isinstance(item, torch.Tensor):
            pixels = item.permute(1, 2, 0) if len(item) > 1 else item[0]
            return _written(Image.fromarray(pixels.contiguous().numpy()), "PNG")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks on odd files; too large ones are refused below
                width, height, grey = images.look(item)
                scale = min(1.0, side / max(width, height))
                shape = (1 if grey else 3, max(1, round(height * scale)), max(1, round(width * scale)))
                shape = _turned(item, shape)
                pixels = images.decode(item, shape)
        except Exception as error:  # Pillow raises many kinds on a broken file, SyntaxError among them
            raise InputError(reason(error)) from error
        made = Image.fromarray(pixels[0].numpy() if grey else pixels.permute(1, 2, 0).contiguous().numpy())
        return _written(made, "PNG" if max(made.size) <= SIZES["small"] else "JPEG")

    def text(self, position: int) -> str:
        """The text of a sample."""
        item = self.items[position]
        return str(item if isinstance(item, str) else " ".join(item))

    def cells(self, position: int) -> list[tuple[str, str]]:
        """The columns of a sample and what stands in them."""
        item = self.items[position]
        values = [f"{value:.6g}" for value in item.tolist()] if isinstance(item, torch.Tensor) else list(item)
        names = self.columns or tuple(f"column {k}" for k in range(len(values)))
        return list(zip(names, values, strict=True))[:MOST_CELLS]

    def digest(self, count: int) -> str:
        """A short text that is another one for other cells or numbers in the first rows."""
        found = hashlib.blake2b(digest_size=16)
        for item in (self.items[position] for position in range(count)):
            found.update(item.numpy().tobytes() if isinstance(item, torch.Tensor) else json.dumps(item).encode())
        return found.hexdigest()


def of_rows(rows: Rows) -> Contents:
    """The contents of rows that are numbers already."""
    return Contents(kind="image" if rows.is_image else "table", items=_Each(rows.x))


class _Each:
    """A sample at a time out of a tensor, or out of samples on disk."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getitem__(self, position: int) -> torch.Tensor:
        sample: torch.Tensor = self.x[position : position + 1][0]
        return sample


def _turned(path: Any, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Height and width changed over where the camera was held upright."""
    from PIL import Image

    with Image.open(path) as image:
        upright = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    return (shape[0], shape[2], shape[1]) if upright else shape


def _written(image: Any, kind: str) -> tuple[bytes, str]:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue(), f"image/{kind.lower()}"
