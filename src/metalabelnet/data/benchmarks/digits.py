"""The digits data set of scikit-learn, which is small and needs no download."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.files import npz
from metalabelnet.data.rows import DataSet, make_rows
from metalabelnet.errors import InputError, missing_package_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = "digits.npz"
CLASSES = tuple(str(digit) for digit in range(10))
SHA256 = "0b7e9c3202d7bcd255d6a19a238d3743bf5e320ba74812a6679958a017c55382"  # of images and labels


def read(folder: Path | None = None) -> DataSet:
    """Return 1,797 images of 8×8 as uint8 (N, 1, 8, 8), with labels 0 to 9.

    They are read from digits.npz in the folder, which `write` makes for machines without scikit-learn, or else from
    scikit-learn. The published values, 0 to 16, are scaled to 0 to 255. There is no test part: scikit-learn contains
    only the test part of the original data, which is used as training rows here.
    """
    file = data_folder(folder) / FILE
    if file.is_file():
        rows = npz.read(file, classes=CLASSES).train
        if not isinstance(rows.x, Tensor) or _digest(rows.x, rows.given) != SHA256:
            raise InputError(
                f"{file}: not the data set digits; delete the file, or write it again with scikit-learn installed"
            )
    else:
        x, labels = _from_sklearn()
        rows = make_rows(x, labels, true=labels, classes=CLASSES, what="digits")
    return DataSet(name="digits", train=rows)


def write(folder: Path) -> Path:
    """Write the data to digits.npz in the folder, so that `read` does not need scikit-learn."""
    x, labels = _from_sklearn()
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / FILE, x_train=x.numpy(), y_train=labels.numpy())
    return folder / FILE


def _digest(x: Tensor, labels: Tensor) -> str:
    return hashlib.sha256(x.contiguous().numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


def _from_sklearn() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits  # an optional dependency
    except ImportError as error:
        raise missing_package_error("scikit-learn", "digits", "the data set digits") from error
    values, target = _load_once(load_digits)
    images = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return torch.from_numpy(images), torch.from_numpy(target.astype(np.int64))


@functools.cache
def _load_once(load_digits: Callable[..., Any]) -> Any:
    """Return the published values, parsed once: many small runs in one process read them."""
    return load_digits(return_X_y=True)
