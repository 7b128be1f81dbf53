"""Decoding of image files to arrays of one shape. Worker processes import this module, which needs no PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.input_files.image_files import open_image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ORIENTATION, QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # a tag of EXIF, and its values for images turned by 90° or 270°


def decode_image(source: Path | bytes, shape: tuple[int, ...], resize: int | None = None) -> NDArray[np.uint8]:
    """Return an image as uint8 of this shape (channels, height, width).

    With `resize` it is resized to a square of that side, whose center is cropped to the shape.
    """
    channels, height, width = shape
    if resize is None:
        return _decode(source, shape)
    top, left = (resize - height) // 2, (resize - width) // 2
    image = _decode(source, (channels, resize, resize))
    return np.ascontiguousarray(image[:, top : top + height, left : left + width])


def decode_center(source: Path | bytes | NDArray[np.uint8], resize: int, side: int) -> NDArray[np.uint8]:
    """Return the center of an image as uint8 (3, side, side), after its shorter side is resized to `resize` (bilinear).

    The image is a file, its content, or an array (channels, height, width).
    """
    from PIL import Image

    if isinstance(source, np.ndarray):
        pixels = source[:1].repeat(3, 0) if len(source) < 3 else source[:3]
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    else:
        image = _open_upright(source, "RGB", (2 * resize, 2 * resize))
    length = min(image.size) * side / resize  # of the square in the image, in its pixels
    left, top = (image.width - length) / 2, (image.height - length) / 2
    square = (left, top, left + length, top + length)
    image = image.resize((side, side), Image.Resampling.BILINEAR, box=square, reducing_gap=3.0)
    return np.ascontiguousarray(np.array(image, np.uint8).transpose(2, 0, 1))


def _decode(source: Path | bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    from PIL import Image

    channels, height, width = shape
    image = _open_upright(source, "L" if channels == 1 else "RGB", (width, height))
    image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    pixels = np.array(image, np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _open_upright(source: Path | bytes, mode: str, min_size: tuple[int, int]) -> Any:
    """Return the decoded image in this mode, rotated by its EXIF orientation, with transparent pixels on white.

    A JPEG is decoded at 1/8, 1/4, 1/2 or the whole of its size: the smallest with at least `min_size` (width, height).
    """
    from PIL import Image, ImageOps

    with open_image(source) as opened:
        turned = opened.getexif().get(ORIENTATION) in QUARTER_TURNS
        opened.draft(None, min_size[::-1] if turned else min_size)
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")):  # more than 8 bits: Pillow's conversion would clip at 255
            image = Image.fromarray(_to_uint8(np.asarray(image, np.float32), image.mode))
        if image.has_transparency_data:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return image.convert(mode)


def _to_uint8(values: NDArray[np.float32], mode: str) -> NDArray[np.uint8]:
    """Scale 16-bit values to 8 bits. The range of other wide modes is guessed: [0, 1], 8 bits or 16 bits."""
    values = np.nan_to_num(values)
    largest = values.max()
    factor = 1 / 257 if mode.startswith("I;16") or largest > 255 else 255 if mode == "F" and largest <= 1 else 1
    return (values * factor).clip(0, 255).astype(np.uint8)
