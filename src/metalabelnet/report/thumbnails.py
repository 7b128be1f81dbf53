"""Thumbnails as data: URIs, embedded in the page."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.data.encoders import images

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

MAX_SIDE_PIXELS = 128
MAX_PNG_SIDE_PIXELS = 40  # up to this size a PNG is as small as a JPEG, and lossless


def thumbnail_from_file(path: Path) -> str:
    """The thumbnail of an image file, rotated by its EXIF orientation."""
    return thumbnail_from_array(images.decode_to_fit(path, MAX_SIDE_PIXELS).numpy())


def thumbnail_from_array(x: Pixels) -> str:
    """The thumbnail of an array of bytes (channels, height, width)."""
    channels = x.shape[0]
    if channels not in (1, 3, 4):
        x = x[:1]
    x = downscale(x)
    pixels = np.ascontiguousarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))
    kind, content = (
        ("png", encode_png(pixels))
        if max(pixels.shape[:2]) <= MAX_PNG_SIDE_PIXELS or len(x) == 4
        else _encode_jpeg(pixels)
    )
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def downscale(x: Pixels) -> Pixels:
    """Average square blocks of pixels so that no side is longer than `MAX_SIDE_PIXELS`."""
    k = -(-max(x.shape[1:]) // MAX_SIDE_PIXELS)
    if k == 1:
        return x
    rows, columns = (-(-side // k) * k - side for side in x.shape[1:])
    padded = np.pad(x, ((0, 0), (0, rows), (0, columns)), mode="edge")
    c, height, width = padded.shape
    means: Any = padded.reshape(c, height // k, k, width // k, k).mean((2, 4))
    return means.round().astype(np.uint8)  # type: ignore[no-any-return]


def encode_png(pixels: Pixels) -> bytes:
    """Encode gray (height, width), RGB (height, width, 3) or RGBA (height, width, 4) pixels as PNG."""
    height, width = pixels.shape[:2]
    color = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    lines = pixels.reshape(height, -1)
    raw = np.concatenate(
        [np.zeros((height, 1), np.uint8), lines], axis=1
    ).tobytes()  # each line starts with its filter type
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0),
        b"IDAT": zlib.compress(raw, 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _encode_jpeg(pixels: Pixels) -> tuple[str, bytes]:
    """Encode as JPEG, a tenth of the size, or as PNG without Pillow; returns format and content."""
    try:
        from PIL import Image
    except ImportError:
        return "png", encode_png(pixels)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80, optimize=True)
    return "jpeg", buffer.getvalue()
