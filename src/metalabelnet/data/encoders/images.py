"""Image files of any size and mode as uint8 arrays of one shape, decoded beside each other.

Recipe: turned as the camera held it (EXIF), transparent parts on white, then the whole picture resized to a square,
whatever its proportions: nothing is cut off. Grey pictures stay grey where all are.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.errors import InputError, missing_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path, PurePath

    from numpy.typing import NDArray
    from torch import Tensor

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
MOST_PIXELS = 89_478_485  # Pillow's own mark, 1/4 GiB of RGB: a file beyond it is a mistake or an attack
GREY = ("1", "L", "LA", "I", "F")
SIZES = (8, 16, 28, 32, 48, 64)  # to choose from; networks by name of other packages take 224
THEIR_NETS = 224


def is_image(path: PurePath) -> bool:
    """Whether the name is that of an image."""
    return path.suffix.lower() in SUFFIXES


def look(path: Path) -> tuple[int, int, bool]:
    """Width, height and whether it is grey, from the header alone: no pixel is decoded."""
    with _opened(path) as image:
        return image.width, image.height, image.mode in GREY or image.mode.startswith("I;16")


def decode(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The image as uint8 of this shape (channels, height, width)."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _opened(path) as image:
        image.draft(None, (2 * width, 2 * height))  # a JPEG can be decoded at a fraction of its size
        turned = ImageOps.exif_transpose(image)
        if turned.mode.startswith(("I", "F")):  # more than 8 bits: Pillow's own conversion would cut them off at 255
            turned = Image.fromarray(_in_bytes(np.asarray(turned, np.float32), turned.mode))
        if turned.has_transparency_data:
            over = turned.convert("RGBA")
            turned = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
        turned = turned.convert("L" if channels == 1 else "RGB")
        turned = turned.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        pixels = np.array(turned, np.uint8)
    return torch.from_numpy(pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _in_bytes(values: NDArray[np.float32], mode: str) -> NDArray[np.uint8]:
    """Values of 16 bits in 8; of other wide modes by their size: fractions of 1, bytes, or 16 bits."""
    values = np.nan_to_num(values)
    most = values.max()
    factor = 1 / 257 if mode.startswith("I;16") or most > 255 else 255 if mode == "F" and most <= 1 else 1
    return (values * factor).clip(0, 255).astype(np.uint8)


def each(call: Callable[[Path], Any], paths: Sequence[Path]) -> Iterator[Any]:
    """The result of each call, or the exception it ended in, in order; threads work ahead a little."""
    check_installed()
    workers = min(16, 2 * (os.cpu_count() or 1))
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        from PIL import Image

        warnings.filterwarnings("ignore", module="PIL")  # remarks on odd files that can be decoded all the same
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        waiting = iter(paths)
        ahead = [pool.submit(_caught, call, path) for path in itertools.islice(waiting, 8 * workers)]
        while ahead:
            done = ahead.pop(0).result()
            ahead.extend(pool.submit(_caught, call, path) for path in itertools.islice(waiting, 1))
            yield done


def choose_shape(found: Sequence[tuple[int, int, bool]], size: int | None, *, their_net: bool) -> tuple[int, int, int]:
    """Channels, height and width for images of these sizes.

    Without a size: 224 for a network of timm or torchvision; else the largest of 8, 16, 28, 32, 48 and 64 that is no
    larger than the shorter side of half of the images. Grey where all are, and the network is one of ours.
    """
    if size is None:
        shorter = statistics.median(min(width, height) for width, height, _ in found)
        size = THEIR_NETS if their_net else max(side for side in SIZES if side <= max(shorter, SIZES[0]))
    return (1 if all(grey for *_, grey in found) and not their_net else 3), size, size


def check_installed() -> None:
    """Refuse where Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise missing_package("Pillow", "images", "reading images") from error


def _caught(call: Callable[[Path], Any], path: Path) -> Any:
    try:
        return call(path)
    except Exception as error:  # Pillow raises many kinds on a broken file, SyntaxError among them
        return error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The image, its header read and its number of pixels found sensible."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(f"{image.width}×{image.height}")
            yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        count = re.search(r"\d+", str(error))
        raise _too_large(f"{int(count.group()):,}" if count else "too many") from error
    except UnidentifiedImageError as error:
        raise InputError("is not an image") from error


def _too_large(pixels: str) -> InputError:
    return InputError(f"has {pixels} pixels, more than the {MOST_PIXELS:,} that are decoded")
