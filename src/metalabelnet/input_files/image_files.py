"""Image files from strangers: only a few formats are decoded, by content, and only up to a number of pixels."""

from __future__ import annotations

import functools
import importlib
import io
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError, missing_package_error
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePath

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
# The only decoders of Pillow that see a file, whatever its name. Others call programs (EPS: Ghostscript) or are rarely
# used, and so rarely tested with damaged files. Cameras write MPO in files named .jpg.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_PLUGINS = ("Jpeg", "Mpo", "Png", "WebP", "Gif", "Bmp", "Tiff", "Ppm")
_OTHER_FORMATS = {  # how files of other formats begin, to name them in messages; offset, bytes
    "EPS": ((0, b"%!PS"), (0, b"\xc5\xd0\xd3\xc6")),
    "PDF": ((0, b"%PDF"),),
    "PSD": ((0, b"8BPS"),),
    "ICO": ((0, b"\x00\x00\x01\x00"), (0, b"\x00\x00\x02\x00")),
    "HEIC": ((4, b"ftyphei"), (4, b"ftypmif1")),
    "AVIF": ((4, b"ftypavi"),),
    "JPEG 2000": ((0, b"\x00\x00\x00\x0cjP  "), (0, b"\xff\x4f\xff\x51")),
    "JPEG XL": ((0, b"\x00\x00\x00\x0cJXL "), (0, b"\xff\x0a")),
    "WMF": ((0, b"\xd7\xcd\xc6\x9a"),),
    "DICOM": ((128, b"DICM"),),
    "SVG": ((0, b"<svg"), (0, b"<?xml")),
}
MAX_PIXELS = 89_478_485  # Pillow's own limit, ¼ GiB of RGB: a larger file is a mistake or a decompression bomb
GRAY_MODES = ("1", "L", "LA", "I", "F")


def is_image(path: PurePath) -> bool:
    """Whether the file name has the suffix of an image."""
    return path.suffix.lower() in SUFFIXES


def read_header(path: Path) -> tuple[int, int, bool]:
    """Return width, height and whether the image is grayscale, without decoding pixels."""
    with open_image(path) as image:
        return image.width, image.height, is_gray(image)


def is_gray(image: Any) -> bool:
    """Whether an open image is grayscale."""
    return image.mode in GRAY_MODES or image.mode.startswith("I;16")


@contextmanager
def open_image(source: Path | bytes) -> Iterator[Any]:
    """Open an image of one of `FORMATS`, a file or its content: its header is read and its number of pixels checked.

    Every image is opened here. Only its first frame is decoded. Messages of errors follow the name of the image.
    """
    from PIL import Image, UnidentifiedImageError

    _import_plugins()
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular_file(source, subject="") as file:
            try:
                image = Image.open(file, formats=[name for name in FORMATS if name != "MPO"])  # JPEG opens MPO too
            except UnidentifiedImageError as error:
                file.seek(0)
                raise _format_error(file.read(256)) from error
            with image:
                if image.width * image.height > MAX_PIXELS:
                    raise _too_large_error(f"{image.width}×{image.height}")
                yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        count = re.search(r"\d+", str(error))
        raise _too_large_error(f"{int(count.group()):,}" if count else "too many") from error


@functools.cache
def _import_plugins() -> None:
    """Register the decoders of `FORMATS`. Otherwise Pillow would import all of its decoders for some of them."""
    for name in _PLUGINS:
        importlib.import_module(f"PIL.{name}ImagePlugin")


def _format_error(start: bytes) -> InputError:
    """Return the error for a file that starts with these bytes and is in none of `FORMATS`."""
    allowed = ", ".join(FORMATS)
    for name, signatures in _OTHER_FORMATS.items():
        if any(start[offset:].startswith(signature) for offset, signature in signatures):
            return InputError(f"is in the format {name}; convert it to one of {allowed}")
    return InputError(f"is not an image in one of the formats {allowed}")


def _too_large_error(pixels: str) -> InputError:
    return InputError(f"has {pixels} pixels, more than the limit of {MAX_PIXELS:,}")


def check_installed() -> None:
    """Raise InputError if Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise missing_package_error("Pillow", "images", "reading images") from error


def describe_error(error: Exception) -> str:
    """Return why an image cannot be used, as a phrase that follows its name."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"does not exist (no file {error.filename})"
    if isinstance(error, OSError) and error.strerror:  # of the system; Pillow's own have no number
        return f"cannot be opened ({error.strerror})"
    return f"cannot be decoded ({' '.join(str(error).split())[:120] or type(error).__name__})"
