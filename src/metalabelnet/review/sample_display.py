"""Images, texts and table cells of samples for display, addressed by position in the data.

Requests contain no names or paths. Images are decoded and encoded again, so only pixels are served: no metadata, and
nothing of a file that is not an image.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from metalabelnet.errors import InputError
from metalabelnet.input_files.image_files import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MAX_CELLS = 60
SAMPLES_PER_CHUNK = 1024
MAX_SIDE_PIXELS = {"small": 256, "large": 1024}


class Items(Protocol):
    """A sequence of samples, indexed by position."""

    def __getitem__(self, position: int, /) -> Any:
        """The sample at a position."""


@dataclass(frozen=True, kw_only=True)
class SampleDisplay:
    """The samples of the data. `items` are image paths, table cells or arrays, depending on the kind."""

    kind: str  # image, text, table
    items: Items
    columns: tuple[str, ...] = field(default=())
    are_arrays: bool = False

    def image(self, position: int, size: str) -> tuple[bytes, str]:
        """The encoded image and its media type.

        Raises
        ------
        InputError
            If the file is not a readable image.
        """
        from PIL import Image

        from metalabelnet.data.encoders import images

        item, side = self.items[position], MAX_SIDE_PIXELS[size]
        if self.are_arrays:
            pixels = item.transpose(1, 2, 0) if len(item) > 1 else item[0]
            return _encode(Image.fromarray(np.ascontiguousarray(pixels)), "PNG")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about odd files; decode() rejects images that are too large
                pixels = images.decode_to_fit(item, side)
        except Exception as error:  # Pillow raises many exception types, even SyntaxError
            raise InputError(describe_error(error)) from error
        image = Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())
        return _encode(image, "PNG" if max(image.size) <= MAX_SIDE_PIXELS["small"] else "JPEG")

    def text(self, position: int) -> str:
        """The text of a sample."""
        item = self.items[position]
        return str(item if isinstance(item, str) else " ".join(item))

    def cells(self, position: int) -> list[tuple[str, str]]:
        """The column names and cells of a sample."""
        item = self.items[position]
        values = [f"{value:.6g}" for value in item.tolist()] if self.are_arrays else list(item)
        names = self.columns or tuple(f"column {k}" for k in range(len(values)))
        return list(zip(names, values, strict=True))[:MAX_CELLS]

    def digest(self, count: int) -> str:
        """A hash of the content of the first rows."""
        digest = hashlib.blake2b(digest_size=16)
        if isinstance(self.items, _ArrayItems):
            contents = self.items.chunks(count)
        else:
            contents = (json.dumps(self.items[position]).encode() for position in range(count))
        for content in contents:
            digest.update(content)
        return digest.hexdigest()


def display_arrays(x: Any) -> SampleDisplay:
    """The display of samples that are an array, a tensor or a `StreamedTensor`."""
    return SampleDisplay(kind="image" if x.ndim == 4 else "table", items=_ArrayItems(x), are_arrays=True)


class _ArrayItems:
    """Single samples, and the bytes of many, as NumPy arrays."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getitem__(self, position: int) -> NDArray[Any]:
        sample: NDArray[Any] = np.asarray(self.x[position : position + 1])[0]
        return sample

    def chunks(self, count: int) -> Iterator[bytes]:
        """Yield the bytes of the first samples."""
        for start in range(0, count, SAMPLES_PER_CHUNK):
            yield np.asarray(self.x[start : min(start + SAMPLES_PER_CHUNK, count)]).tobytes()


def _encode(image: Any, kind: str) -> tuple[bytes, str]:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue(), f"image/{kind.lower()}"
