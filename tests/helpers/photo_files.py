"""JPEG files like photos, and the sizes at which they are decoded."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps


def make_photo(width: int, height: int, quality: int = 90, orientation: int = 1) -> bytes:
    """A JPEG with details of all sizes, as a photo has."""
    random, pixels = np.random.default_rng(0), np.zeros((height, width, 3))
    for k in range(2, 9):
        coarse = Image.fromarray(random.integers(0, 256, (2**k, 2**k, 3)).astype(np.uint8))
        pixels += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64) / 1.5**k
    image = Image.fromarray((255 * (pixels - pixels.min()) / np.ptp(pixels)).astype(np.uint8))
    exif, file = image.getexif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(file, format="JPEG", quality=quality, exif=exif)
    return file.getvalue()


def record_decoded_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets the width and height at which each image is decoded."""
    sizes: list[tuple[int, int]] = []
    transpose = ImageOps.exif_transpose

    def record(image: Any) -> Any:
        image.load()
        sizes.append(image.size)
        return transpose(image)

    monkeypatch.setattr(ImageOps, "exif_transpose", record)
    return sizes
