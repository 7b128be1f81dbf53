"""The samples of an .npz file a few at a time, so that what is predicted may be of any size."""

from __future__ import annotations

import math
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.data.disk_tensor import chunk_size, chunks
from metalabelnet.data.files import npz
from metalabelnet.data.rows import check_numbers
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

KEY = "x_train"
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def pieces(path: Path, classes: tuple[str, ...]) -> tuple[int, tuple[int, ...], Iterator[Tensor]]:
    """How many samples x_train has, the shape of one, and all of them, a few at a time; nothing else is looked at.

    The file is read from its beginning to its end, compressed or not. An array that does not lie row by row in it, and
    whatever cannot be read, is left to the reader of whole files, with what it has to say.
    """
    found = _header(path)
    if found is None:
        x = npz.read(path, classes=classes).train.x
        return len(x), tuple(x.shape[1:]), chunks(x)
    shape, dtype = found
    sample = tuple(npz.as_samples(np.zeros((1, *shape[1:]), dtype), f"{path}: {KEY}").shape[1:])
    return shape[0], sample, _read(path, shape, dtype)


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and type of the array, where its rows can be read one after the other."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{KEY}.npy") as file:
            shape, fortran, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    except (*npz.BROKEN, KeyError):
        return None
    return None if fortran or dtype.hasobject or len(shape) < 2 or 0 in shape else (shape, dtype)


def _read(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Tensor]:
    size, row = chunk_size(shape[1:]), math.prod(shape[1:]) * dtype.itemsize
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{KEY}.npy") as file:
            HEADERS[np.lib.format.read_magic(file)](file)
            for start in range(0, shape[0], size):
                count = min(size, shape[0] - start)
                content = file.read(count * row)
                if len(content) < count * row:
                    raise EOFError(f"it ends at row {start + len(content) // row}")
                array = np.frombuffer(bytearray(content), dtype).reshape(count, *shape[1:])
                x = npz.as_samples(array, f"{path}: {KEY}")
                check_numbers(x, f"{path}, {KEY}", start)
                yield x
    except InputError:
        raise
    except npz.BROKEN as error:
        raise InputError(f"{path}: {KEY} cannot be read ({error}); write the file with numpy.savez") from error
