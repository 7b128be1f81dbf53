"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from its four idx files, compressed or not.

An idx file is four bytes — zero, zero, the type of a value, the number of axes — then the length of each
axis as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from metalabelnet.data.benchmarks.download import FOLDER_VARIABLE, data_folder
from metalabelnet.data.rows import DataSet, Rows, make_rows
from metalabelnet.errors import InputError

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
FILES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_UNSIGNED_BYTE = 0x08


def read(folder: Path | None = None) -> DataSet:
    """60,000 training and 10,000 test images as uint8 (N, 1, 28, 28).

    Looked for in `fashion-mnist` in the folder (MNIST's files have the same names, so that a folder of
    its own is the safe place), in the folder itself, and where Debian's package puts them.
    """
    train_images, train_labels, test_images, test_labels = _find(data_folder(folder))
    return DataSet(
        name="fashion-mnist",
        train=_part(train_images, train_labels),
        test=_part(test_images, test_labels),
    )


def _find(root: Path) -> list[Path]:
    """The four files, all from the first place that has any: a mixture of copies would be nobody's data."""
    places = (root / "fashion-mnist", root, DEBIAN_FOLDER)
    for place in places:
        # The uncompressed file wins where both are there: it is the faster one to read.
        candidates = [(place / name, place / f"{name}.gz") for name in FILES]
        found = [next((path for path in pair if path.is_file()), None) for pair in candidates]
        present = [path for path in found if path is not None]
        if len(present) == len(FILES):
            return present
        if present:
            absent = FILES[found.index(None)]
            raise InputError(f"fashion-mnist: {place} has {present[0].name} but no {absent} (or .gz)")
    raise InputError(
        f"fashion-mnist: {FILES[0]} and the three other files, with or without .gz, are not in "
        f"{', '.join(map(str, places))}; install Debian's package dataset-fashion-mnist, or get them from "
        f"https://github.com/zalandoresearch/fashion-mnist and put them into {places[0]}, "
        f"or name their folder in {FOLDER_VARIABLE}"
    )


def _part(images_at: Path, labels_at: Path) -> Rows:
    images = read_idx(images_at, axes=3)
    if images.shape[1:] != (28, 28):
        raise InputError(f"{images_at}: images are {images.shape[1]}×{images.shape[2]}, not 28×28")
    labels = torch.from_numpy(read_idx(labels_at, axes=1)).long()
    x = torch.from_numpy(images[:, None])
    return make_rows(x, labels, true=labels, classes=CLASSES, what=str(images_at))


def read_idx(path: Path, *, axes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The array of unsigned bytes in an idx file with that many axes (compressed where it ends in .gz)."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); get the file again") from error
    magic, header = bytes((0, 0, _UNSIGNED_BYTE, axes)), 4 + 4 * axes
    if content[:4] != magic:
        raise InputError(
            f"{path}: starts with {content[:4].hex() or 'nothing'}, but an idx file of bytes with {axes} "
            f"axes starts with {magic.hex()}; this is another file"
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if len(content) != header + math.prod(shape):
        raise InputError(
            f"{path}: has {len(content)} bytes, but its header speaks of {header + math.prod(shape)}; "
            f"it broke off or is damaged, get the file again"
        )
    # A copy, because an array over immutable bytes cannot be written to, which torch warns about.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
