"""Small pictures that stand in the page itself, as data: URIs."""

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

SIDE = 128  # the longer one, of a picture in the page
SMALL = 40  # up to here a PNG is as small as a JPEG, and loses nothing
TURNED = (5, 6, 7, 8)  # values of EXIF's orientation with width and height exchanged
ORIENTATION = 0x0112


def of_file(path: Path) -> str:
    """The picture in a file, as it is meant to be seen, made small."""
    from PIL import Image

    width, height, grey = images.look(path)
    with Image.open(path) as image:
        if image.getexif().get(ORIENTATION) in TURNED:
            width, height = height, width
    scale = min(1.0, SIDE / max(width, height))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return of_array(images.decode(path, (1 if grey else 3, *size)).numpy())


def of_array(x: Pixels) -> str:
    """The picture in an array (channels, height, width) of bytes."""
    channels = x.shape[0]
    if channels not in (1, 3, 4):
        x = x[:1]
    x = shrunk(x)
    pixels = np.ascontiguousarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))
    kind, content = ("png", png(pixels)) if max(pixels.shape[:2]) <= SMALL or len(x) == 4 else _encoded(pixels)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def shrunk(x: Pixels) -> Pixels:
    """No side longer than `SIDE`: means over squares of pixels."""
    k = -(-max(x.shape[1:]) // SIDE)
    if k == 1:
        return x
    rows, columns = (-(-side // k) * k - side for side in x.shape[1:])
    padded = np.pad(x, ((0, 0), (0, rows), (0, columns)), mode="edge")
    c, height, width = padded.shape
    means: Any = padded.reshape(c, height // k, k, width // k, k).mean((2, 4))
    return means.round().astype(np.uint8)  # type: ignore[no-any-return]


def png(pixels: Pixels) -> bytes:
    """A PNG file of grey (height, width), or color (height, width, 3 or 4) with or without transparency."""
    height, width = pixels.shape[:2]
    color = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    lines = pixels.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()  # each line begins with its filter
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


def _encoded(pixels: Pixels) -> tuple[str, bytes]:
    """A JPEG, a tenth of the size, where Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return "png", png(pixels)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80, optimize=True)
    return "jpeg", buffer.getvalue()
