"""The digits that come with scikit-learn: small enough to try anything on in seconds, offline."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.rows import DataSet, make_rows
from metalabelnet.errors import missing_package

if TYPE_CHECKING:
    from collections.abc import Callable


def read() -> DataSet:
    """1,797 images of 8×8 as uint8 (N, 1, 8, 8), labels 0 to 9.

    The published values are 0 to 16; they are stretched to 0 to 255 so that these images are like all
    others to whatever comes after. There is no test part: scikit-learn's copy is the original's test
    part alone, so who needs one splits it off.
    """
    try:
        from sklearn.datasets import load_digits  # an extra: only this reader needs it
    except ImportError as error:
        raise missing_package("scikit-learn", "digits", "the data set digits") from error
    values, target = _published(load_digits)
    images = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(target.astype(np.int64))
    classes = tuple(str(digit) for digit in range(10))
    rows = make_rows(torch.from_numpy(images), labels, true=labels, classes=classes, what="digits")
    return DataSet(name="digits", train=rows)


@functools.cache
def _published(load_digits: Callable[..., Any]) -> Any:
    """The published values, parsed once: many small runs in one process read them again and again."""
    return load_digits(return_X_y=True)
