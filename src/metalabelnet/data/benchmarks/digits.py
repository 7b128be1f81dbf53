"""The digits that come with scikit-learn: small enough to try anything on in seconds, offline."""

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
from metalabelnet.errors import InputError, missing_package

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = "digits.npz"
CLASSES = tuple(str(digit) for digit in range(10))
SHA256 = "0b7e9c3202d7bcd255d6a19a238d3743bf5e320ba74812a6679958a017c55382"  # of the images and labels as they are read


def read(folder: Path | None = None) -> DataSet:
    """1,797 images of 8×8 as uint8 (N, 1, 8, 8), labels 0 to 9.

    Taken from digits.npz in the folder, which `write` makes for machines without scikit-learn, or else from
    scikit-learn. The published values are 0 to 16; they are stretched to 0 to 255 so that these images are like all
    others to whatever comes after. There is no test part: scikit-learn's copy is the original's test
    part alone, so who needs one splits it off.
    """
    file = data_folder(folder) / FILE
    if file.is_file():
        rows = npz.read(file, classes=CLASSES).train
        if not isinstance(rows.x, Tensor) or _mark(rows.x, rows.given) != SHA256:
            raise InputError(
                f"{file}: is not the data set digits; remove it, or write it again with scikit-learn there"
            )
    else:
        x, labels = _from_sklearn()
        rows = make_rows(x, labels, true=labels, classes=CLASSES, what="digits")
    return DataSet(name="digits", train=rows)


def write(folder: Path) -> Path:
    """Put the data into a file that `read` prefers: a machine that has it needs no scikit-learn."""
    x, labels = _from_sklearn()
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / FILE, x_train=x.numpy(), y_train=labels.numpy())
    return folder / FILE


def _mark(x: Tensor, labels: Tensor) -> str:
    return hashlib.sha256(x.contiguous().numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


def _from_sklearn() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits  # an extra: only this reader needs it
    except ImportError as error:
        raise missing_package("scikit-learn", "digits", "the data set digits") from error
    values, target = _published(load_digits)
    images = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return torch.from_numpy(images), torch.from_numpy(target.astype(np.int64))


@functools.cache
def _published(load_digits: Callable[..., Any]) -> Any:
    """The published values, parsed once: many small runs in one process read them again and again."""
    return load_digits(return_X_y=True)
