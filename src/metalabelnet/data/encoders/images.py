"""Image files of any size and mode as uint8 tensors of one shape, decoded in threads.

Images are rotated by their EXIF orientation, put on a white background if transparent, and resized to a square
without cropping, whatever their aspect ratio. They stay grayscale if all of them are.
"""

from __future__ import annotations

import itertools
import os
import statistics
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.encoders.encoder import Encoder
from metalabelnet.input_files.image_decoding import decode_image
from metalabelnet.input_files.image_files import MAX_PIXELS, check_installed, describe_error, is_gray, open_image
from metalabelnet.input_files.regular_files import TooManyOpenFilesError, check_file_handles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

EXIF_ORIENTATION = 0x0112
EXIF_ROTATED = (5, 6, 7, 8)  # orientations that exchange width and height
SIDES_PIXELS = (8, 16, 28, 32, 48, 64)  # of images that are read from files
EXTERNAL_NET_SIDE = 224  # pixels, for networks of timm and torchvision
MAX_THREADS = 16
MAX_SIDE_PIXELS = 9459  # the square of it is less than `MAX_PIXELS`


class ImageEncoder(Encoder):
    """Decodes image files to one shape.

    Parameters
    ----------
    shape : tuple of int
        (channels, height, width).
    column : str or None
        The table column of the paths; None if images come from a folder.
    resize : int or None
        Side in pixels of the square that images are resized to before its center is cropped to the shape; None: they
        are resized to the shape.
    """

    kind = "image"
    dtype = torch.uint8

    def __init__(self, shape: tuple[int, ...], column: str | None, resize: int | None = None) -> None:
        self.shape, self.resize = shape, resize
        self.columns = [] if column is None else [column]

    def encode(self, items: Sequence[Path]) -> Iterator[Tensor | str]:
        """Yield the pixels of each image, decoded in threads."""
        for result in map_in_threads(self._decode, items):
            yield describe_error(result) if isinstance(result, Exception) else result

    def _decode(self, path: Path) -> Tensor:
        return decode(path, self.shape, self.resize)

    def to_json(self) -> dict[str, Any]:
        """Return the shape, the column of the paths, and the size before the crop if there is one."""
        column = self.columns[0] if self.columns else None
        config: dict[str, Any] = {"kind": self.kind, "shape": self.shape, "column": column}
        return config if self.resize is None else config | {"resize": self.resize}

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> ImageEncoder:
        """Restore the encoder."""
        channels, height, width = config["shape"]
        if not all(type(length) is int and length > 0 for length in config["shape"]):
            raise ValueError("an image size is not a positive integer")
        if channels not in (1, 3) or height * width > MAX_PIXELS:
            raise ValueError(f"images of {channels} channels and {height}×{width} pixels cannot be read")
        if not isinstance(config["column"], str | None):
            raise TypeError("the column of paths is not a text")
        resize = config.get("resize")
        if resize is not None and (type(resize) is not int or not max(height, width) <= resize <= MAX_SIDE_PIXELS):
            raise ValueError(f"images cannot be resized to {resize!r} before they are cropped to {height}×{width}")
        return cls((channels, height, width), config["column"], resize)


def decode(path: Path, shape: tuple[int, ...], resize: int | None = None) -> Tensor:
    """Return the image as uint8 of this shape (channels, height, width), cropped from a square of the side `resize`."""
    return torch.from_numpy(decode_image(path, shape, resize))


def decode_to_fit(path: Path, max_side: int) -> Tensor:
    """Return the image as uint8 (channels, height, width) in its own proportions, no side longer than `max_side`."""
    with open_image(path) as image:
        width, height, channels = image.width, image.height, 1 if is_gray(image) else 3
        if image.getexif().get(EXIF_ORIENTATION) in EXIF_ROTATED:
            width, height = height, width
    scale = min(1.0, max_side / max(width, height))
    return decode(path, (channels, max(1, round(height * scale)), max(1, round(width * scale))))


def map_in_threads(call: Callable[[Path], Any], paths: Sequence[Path]) -> Iterator[Any]:
    """Yield the result of each call, or the exception it raised, in order. Threads work a few calls ahead.

    Too many open files are an error of no single image and are raised.
    """
    check_installed()
    threads = min(MAX_THREADS, 2 * (os.cpu_count() or 1))
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        from PIL import Image

        warnings.filterwarnings("ignore", module="PIL")  # about unusual files that can be decoded
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        remaining = iter(paths)
        pending = [pool.submit(_result_or_error, call, path) for path in itertools.islice(remaining, 8 * threads)]
        while pending:
            result = pending.pop(0).result()
            pending.extend(pool.submit(_result_or_error, call, path) for path in itertools.islice(remaining, 1))
            yield result


def choose_shape(
    headers: Sequence[tuple[int, int, bool]], side: int | None, *, external_net: bool
) -> tuple[int, int, int]:
    """Return (channels, height, width) for images with these headers (`read_header`).

    The default side is 224 for a network of timm or torchvision, else the largest of 8, 16, 28, 32, 48 and 64 that is
    at most the median of the shorter sides. Grayscale needs all images to be grayscale and a network of this package.
    """
    if side is None:
        shorter = statistics.median(min(width, height) for width, height, _ in headers)
        side = (
            EXTERNAL_NET_SIDE
            if external_net
            else max(side for side in SIDES_PIXELS if side <= max(shorter, SIDES_PIXELS[0]))
        )
    return (1 if all(gray for *_, gray in headers) and not external_net else 3), side, side


def _result_or_error(call: Callable[[Path], Any], path: Path) -> Any:
    try:
        return call(path)
    except TooManyOpenFilesError:
        raise
    except Exception as error:  # Pillow raises many types for broken files, SyntaxError among them
        check_file_handles(error, path)
        return error
