"""Labels from a file, such as human annotations, and readers for files of numbers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.input_files import npy_format
from metalabelnet.input_files.regular_files import open_regular_file
from metalabelnet.noise.spec import UNLABELED

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


def labels_from_file(true: Tensor, labels: Tensor, index: Tensor, samples: int | None = None) -> Tensor:
    """Return the file's label of every row, looked up by the sample's number in the original data.

    A row without a true label (−1) stays unlabeled, as with every other noise. A file with more labels than the
    original data has `samples` is refused, because its labels may be shifted; empty lines at its end are allowed.
    """
    if samples is not None and bool((labels[samples:] != UNLABELED).any()):
        raise InputError(
            f"the label file has {len(labels)} labels, but the data has {samples} samples: give one label for every "
            f"sample of the original data (-1 for unlabeled)"
        )
    if len(index) and int(index.max()) >= len(labels):
        raise InputError(
            f"the label file has {len(labels)} labels, but the data has a sample number {int(index.max())}: "
            f"give one label for every sample of the original data (-1 for unlabeled)"
        )
    return torch.where(true == UNLABELED, true, labels[index])


def read_label_file(path: Path, classes: int) -> Tensor:
    """Return labels from .npy (one dimension) or .csv/.txt (one per line, an empty line for unlabeled)."""
    if path.suffix.lower() == ".npy":
        values = load_npy(path, "label file")
        if values.ndim != 1 or values.dtype.kind not in "iuf":
            raise InputError(
                f"label file {path}: one dimension of whole numbers is needed, "
                f"not {values.dtype} of shape {values.shape}"
            )
    else:
        lines = load_lines(path, "label file")
        values = np.array([to_number(line.strip('"') or str(UNLABELED), path, i) for i, line in lines])
    allowed = (values == np.floor(values)) & (values >= UNLABELED) & (values < classes)
    if not allowed.all():
        first = int(np.argmin(allowed))
        raise InputError(
            f"label file {path}: label {first + 1} is {values[first]:.15g}; labels are 0 to {classes - 1}, "
            f"or -1 for unlabeled"
        )
    return torch.from_numpy(values.astype(np.int64))


def load_npy(path: Path, what: str) -> npt.NDArray[Any]:
    """Return the array of a .npy file. Pickles are refused, because loading them can execute code."""
    if path.suffix.lower() != ".npy":
        raise InputError(f"{what} {path}: a .npy file is needed")
    try:
        with open_regular_file(path) as file:
            return npy_format.read_array(file, os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise InputError(f"{what}: there is no file {str(path)!r}") from None
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except (OSError, ValueError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{what} {path}: this is not a .npy array of numbers ({reason})") from None


def load_lines(path: Path, what: str) -> list[tuple[int, str]]:
    """Return the lines of a .csv or .txt file, stripped, each with its number from 1."""
    if path.suffix.lower() not in (".csv", ".txt"):
        raise InputError(f"{what} {path}: a .npy, .csv or .txt file is needed")
    try:
        with open_regular_file(path) as file:
            text = file.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what}: there is no file {str(path)!r}") from None
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path}: this cannot be read as text ({error})") from None
    return [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1)]


def to_number(cell: str, path: Path, line: int) -> float:
    """Return the number in a cell of a text file."""
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{path}, line {line}: {cell!r} is not a number") from None
