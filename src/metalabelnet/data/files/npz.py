"""Data sets in one `.npz` file, as numpy.savez writes it, read whole or as a stream of samples.

    x_train, y_train   samples and their given labels (−1: unlabeled)
    x_test, y_test     test samples with true labels (optional)
    x_clean, y_clean   the clean set (optional)
    true_train         true labels of x_train, −1 where unknown (optional)
    classes            class names (optional)
    ids                ids of x_train, strings (optional; default: row numbers from 0)

Labels are numbers or, in all label arrays alike, class names. Among names, "" and "-1" mean unlabeled; numpy turns −1
into "-1" in an array of strings. Nothing in the file is unpickled: a data file must not be able to run code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.disk_tensor import chunk_size, chunks
from metalabelnet.data.files.npz_arrays import as_sample_array, one_line, open_archive, open_member, read_arrays
from metalabelnet.data.rows import UNLABELED, DataSet, Rows, check_values, make_rows
from metalabelnet.errors import InputError
from metalabelnet.input_files import npy_format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from metalabelnet.input_files.npy_format import ArrayHeader

    Array = NDArray[Any]

STREAM_KEY = "x_train"


def read(
    path: Path, *, name: str | None = None, classes: tuple[str, ...] | None = None, noisy: bool = False
) -> DataSet:
    """Read the data set in the file. `name` replaces the file name, `classes` are used if the file has no class names.

    If `classes` are given, y_train may be missing: all rows are unlabeled then.

    A file with neither true labels nor a clean set is taken for a benchmark to which noise is added later: its given
    labels are its true labels. With a clean set, or if the labels are `noisy`, true labels are unknown.
    """
    arrays = read_arrays(path, classes)
    samples = {key: torch.from_numpy(a) for key, a in arrays.samples.items()}
    labels = {key: torch.from_numpy(a) for key, a in arrays.labels.items()}
    names = arrays.classes
    x = samples["x_train"]
    y = labels["y_train"] if "y_train" in labels else torch.full((len(x),), UNLABELED)
    true = labels.get("true_train", None if noisy or "x_clean" in samples else y)
    if "true_train" in labels and len(labels["true_train"]) != len(x):
        raise InputError(f"{path}: {len(x)} samples in x_train but {len(labels['true_train'])} labels in true_train")
    return DataSet(
        name=name or path.stem,
        train=make_rows(x, y, true=true, classes=names, what=f"{path}, x_train", ids=arrays.ids),
        test=_true_labeled_rows("test", samples, labels, names, path),
        clean=_true_labeled_rows("clean", samples, labels, names, path),
    )


def has_clean_set(path: Path) -> bool:
    """Whether the file contains a clean set. False for unreadable files: `read` reports them."""
    try:
        with open_archive(path) as archive:
            return "x_clean.npy" in archive.namelist()
    except Exception:  # a damaged file may raise anything
        return False


def as_samples(x: Array, what: str) -> Tensor:
    """Return images as uint8 (N, channels, height, width), tables as float32 (N, columns)."""
    return torch.from_numpy(as_sample_array(x, what))


def stream_samples(path: Path, classes: tuple[str, ...]) -> tuple[int, tuple[int, ...], Iterator[Tensor]]:
    """Return the number of samples in x_train, the shape of one, and an iterator over chunks of them.

    Other arrays are not read. The file is read from start to end, compressed or not. An array in Fortran order, and a
    file that cannot be read, are left to `read` and its error messages.
    """
    header = _read_header(path)
    if header is None:
        x = read(path, classes=classes).train.x
        return len(x), tuple(x.shape[1:]), chunks(x)
    shape = header.shape
    sample = tuple(as_samples(np.zeros((1, *shape[1:]), header.dtype), f"{path}: {STREAM_KEY}").shape[1:])
    return shape[0], sample, _stream(path, shape, header.dtype)


def _read_header(path: Path) -> ArrayHeader | None:
    """Return the header of the array, or None if it cannot be read row by row."""
    try:
        with open_archive(path) as archive, open_member(archive, STREAM_KEY) as (file, size):
            header = npy_format.read_header(file, size)
    except Exception:  # a damaged file may raise anything; `read` reports it
        return None
    return None if header.fortran_order or len(header.shape) < 2 or 0 in header.shape else header


def _stream(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Tensor]:
    size, row_bytes = chunk_size(shape[1:]), math.prod(shape[1:]) * dtype.itemsize
    try:
        with open_archive(path) as archive, open_member(archive, STREAM_KEY) as (file, member_bytes):
            npy_format.read_header(file, member_bytes)
            for start in range(0, shape[0], size):
                count = min(size, shape[0] - start)
                content = npy_format.read_exactly(file, count * row_bytes)
                array = np.frombuffer(bytearray(content), dtype).reshape(count, *shape[1:])
                x = as_samples(array, f"{path}: {STREAM_KEY}")
                check_values(x, f"{path}, {STREAM_KEY}", start)
                yield x
    except InputError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise InputError(
            f"{path}: {STREAM_KEY} cannot be read ({one_line(error)}); write the file with numpy.savez"
        ) from error


def _true_labeled_rows(
    part: str, samples: dict[str, Tensor], labels: dict[str, Tensor], classes: tuple[str, ...], path: Path
) -> Rows | None:
    """Return the test part or the clean set, in which every label is a true label."""
    if f"x_{part}" not in samples:
        return None
    y = labels[f"y_{part}"]
    if (y == UNLABELED).any():
        row = int((y == UNLABELED).nonzero()[0, 0])
        raise InputError(f"{path}: y_{part} row {row} is -1 (unlabeled), but every row of that part needs a label")
    return make_rows(samples[f"x_{part}"], y, true=y, classes=classes, what=f"{path}, x_{part}")
