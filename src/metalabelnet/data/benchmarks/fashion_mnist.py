"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, https://arxiv.org/abs/1708.07747) from its four IDX files.

An IDX file starts with four bytes (zero, zero, the value type, the number of axes), followed by the length of each axis
as a big-endian 32-bit integer and the values. Files may be gzip-compressed.
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
from metalabelnet.input_files.regular_files import open_regular_file

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
MAX_BYTES = 1 << 26  # the largest file has 47 MB; a compressed one could expand to anything


def read(folder: Path | None = None) -> DataSet:
    """Return 60,000 training and 10,000 test images as uint8 (N, 1, 28, 28).

    The files are searched for in the subfolder `fashion-mnist` (a separate folder is safest, because the files of MNIST
    have the same names), in the folder itself, and in the folder of Debian's package.
    """
    train_images, train_labels, test_images, test_labels = _find(data_folder(folder))
    return DataSet(
        name="fashion-mnist",
        train=_read_part(train_images, train_labels),
        test=_read_part(test_images, test_labels),
    )


def _find(root: Path) -> list[Path]:
    """Return the four files, all from the first folder that has any: copies are never mixed."""
    folders = (root / "fashion-mnist", root, DEBIAN_FOLDER)
    for folder in folders:
        # An uncompressed file is preferred: it is faster to read.
        candidates = [(folder / name, folder / f"{name}.gz") for name in FILES]
        found = [next((path for path in pair if path.is_file()), None) for pair in candidates]
        present = [path for path in found if path is not None]
        if len(present) == len(FILES):
            return present
        if present:
            missing = FILES[found.index(None)]
            raise InputError(f"fashion-mnist: {folder} has {present[0].name} but not {missing} (or .gz); copy it there")
    raise InputError(
        f"fashion-mnist: {FILES[0]} and the three other files (or .gz) are not in "
        f"{', '.join(map(str, folders))}; install Debian's package dataset-fashion-mnist, or download them from "
        f"https://github.com/zalandoresearch/fashion-mnist to {folders[0]}, "
        f"or set {FOLDER_VARIABLE} to their folder"
    )


def _read_part(images_file: Path, labels_file: Path) -> Rows:
    images = read_idx(images_file, axes=3)
    if images.shape[1:] != (28, 28):
        raise InputError(f"{images_file}: images are {images.shape[1]}×{images.shape[2]}, not 28×28")
    labels = torch.from_numpy(read_idx(labels_file, axes=1)).long()
    x = torch.from_numpy(images[:, None])
    return make_rows(x, labels, true=labels, classes=CLASSES, what=str(images_file))


def read_idx(path: Path, *, axes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the uint8 array in an IDX file with this many axes (compressed if its name ends in .gz)."""
    magic, header = bytes((0, 0, _UNSIGNED_BYTE, axes)), 4 + 4 * axes
    try:
        with open_regular_file(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); download the file again") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: has more than {MAX_BYTES:,} bytes; it is another file, download it again")
    if content[:4] != magic:
        raise InputError(
            f"{path}: starts with {content[:4].hex() or 'nothing'}, but an IDX file of uint8 with {axes} "
            f"axes starts with {magic.hex()}; download the file again"
        )
    shape = tuple(int.from_bytes(content[offset : offset + 4], "big") for offset in range(4, header, 4))
    if len(content) != header + math.prod(shape):
        raise InputError(
            f"{path}: has {len(content)} bytes, but its header states {header + math.prod(shape)}; "
            f"it is incomplete or damaged, download the file again"
        )
    # A copy, because torch warns about read-only arrays.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
