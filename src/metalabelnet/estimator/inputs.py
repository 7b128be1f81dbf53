"""What `fit` is given, checked as scikit-learn checks it: samples, labels, and which of them to trust."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from metalabelnet.data.arrays import channels_first
from metalabelnet.data.rows import LARGEST, NO_LABEL, UNLABELED
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What one sample is: shape (images with the channels first), and how its numbers are scaled.

    Columns of a table, and channels of floating-point images, are brought to mean 0 and standard deviation 1; one
    that never changes stays at 0. Images of bytes are scaled to [−1, 1] where a network reads them.
    """

    shape: tuple[int, ...]
    is_bytes: bool
    mean: Array | None
    scale: Array | None

    @staticmethod
    def of(x: Array, *, standardize: bool) -> Samples:
        """The description of these samples."""
        if x.dtype == np.uint8 or not standardize:
            return Samples(shape=x.shape[1:], is_bytes=x.dtype == np.uint8, mean=None, scale=None)
        over = (0, *range(2, x.ndim))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.mean(over, dtype=np.float64, keepdims=True)[0]
            spread = x.std(over, dtype=np.float64, keepdims=True)[0]
        if not np.isfinite(spread).all():
            raise InputError(f"X has numbers up to {np.abs(x).max():g}, too large to be standardised: scale them down")
        # What is left of a constant column after rounding is no spread.
        constant = spread <= 10 * np.finfo(x.dtype).eps * np.abs(mean)
        return Samples(shape=x.shape[1:], is_bytes=False, mean=mean, scale=np.where(constant, 1.0, spread))

    def check(self, x: Array) -> None:
        """Refuse samples of another kind."""
        if x.shape[1:] != self.shape or (x.dtype == np.uint8) != self.is_bytes:
            raise InputError(
                f"samples are {x.dtype} of shape {x.shape[1:]}, but the classifier was trained on "
                f"{'uint8' if self.is_bytes else 'floating-point numbers'} of shape {self.shape}"
            )

    def tensor(self, x: Array) -> Tensor:
        """These samples as rows hold them."""
        scaled = x
        with np.errstate(over="ignore"):
            if self.mean is not None and self.scale is not None:
                scaled = (x - self.mean.astype(x.dtype)) / self.scale.astype(x.dtype)
            made = np.array(scaled, dtype=np.uint8 if self.is_bytes else np.float32, order="C")
        if not self.is_bytes and not (np.abs(made) <= LARGEST).all():
            largest = np.abs(x).max()
            raise InputError(f"X has numbers up to {largest:g}, too large for single precision: scale them down")
        return torch.from_numpy(made)


def read_samples(estimator: Any, X: Any, channels: str, *, reset: bool) -> Array:
    """A table in double precision, or images as bytes or in single precision with the channels first.

    Sets or compares the number of features on the estimator.
    """
    if getattr(X, "ndim", None) is None:
        X = X if hasattr(X, "__array__") or np.ndim(X) <= 2 else np.asarray(X)
    if getattr(X, "ndim", 2) <= 2:
        table: Array = validate_data(estimator, X, reset=reset, dtype=np.float64)
        return table
    images = channels_first(check_array(X, allow_nd=True, dtype=None, input_name="X"), channels)
    if images.dtype.kind not in "biuf":
        raise InputError(f"images are bytes (uint8) or floating-point numbers, not {images.dtype}")
    if reset:
        estimator.n_features_in_ = int(np.prod(images.shape[1:]))
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    with np.errstate(over="ignore"):  # what is too large is refused where it is standardised
        return images if images.dtype == np.uint8 else images.astype(np.float32)


def read_labels(y: Any, name: str) -> tuple[NDArray[np.int64], Array]:
    """The number of each sample's class, −1 where it has no label, and the classes."""
    if y is None:
        raise InputError(f"{name} requires y to be passed, but the target y is None")
    y = as_column(y, warn=True)
    unlabeled = without_label(y)
    if y.dtype.kind not in "OUST":
        assert_all_finite(y[~unlabeled], input_name="y")
    if unlabeled.all():
        raise InputError("no sample has a label: some must have one")
    labels = y[~unlabeled]
    labels = plain(labels)
    try:
        check_classification_targets(labels)
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = sorted({type(value).__name__ for value in labels})
        said = f"the type {kinds[0]}" if len(kinds) == 1 else f"different types ({', '.join(kinds)})"
        raise InputError(f"labels are of {said}: give all as text or all as numbers") from None
    if len(classes) < 2:
        raise InputError(f"y has one class only, {str(classes[0])!r}: a classifier needs two or more")
    given = np.full(len(y), UNLABELED, dtype=np.int64)
    given[~unlabeled] = numbers
    return given, classes


def as_column(y: Any, *, warn: bool = False) -> Array:
    """One label a sample. Those of pandas stay what they are beside gaps, where scikit-learn makes them floats."""
    column: Array = column_or_1d(y.to_numpy() if hasattr(y, "to_numpy") else y, warn=warn)
    return column


def plain(labels: Array) -> Array:
    """Numbers that stood beside None, and are objects therefore, as numbers."""
    numbers = labels.dtype.kind == "O" and all(isinstance(value, Real | np.bool_) for value in labels)
    return np.array(labels.tolist()) if numbers else labels


def without_label(y: Array) -> NDArray[np.bool_]:
    """Which of these labels stand for none."""
    if y.dtype.kind in "OUST":
        return np.fromiter((_no_label(value) for value in y), dtype=bool, count=len(y))
    nothing: NDArray[np.bool_] = y == UNLABELED if y.dtype.kind in "if" else np.zeros(len(y), dtype=bool)
    return nothing | np.isnan(y) if y.dtype.kind == "f" else nothing


def _no_label(value: Any) -> bool:
    """Whether it stands for no label: None, an empty name, −1 (also as a name), or a missing value of pandas."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return value in NO_LABEL if isinstance(value, str) else bool(value == UNLABELED or value != value)


def read_mask(clean_mask: Any, given: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which samples have a label to trust."""
    if clean_mask is None:
        return np.zeros(len(given), dtype=bool)
    mask = np.asarray(clean_mask)
    if mask.dtype == object and any(type(value).__name__ == "NAType" for value in mask.flat):
        raise InputError("trusted has gaps: give a mask, True or False for each sample")
    if mask.shape != given.shape or (mask.dtype != bool and not np.isin(mask, (0, 1)).all()):
        raise InputError(
            f"trusted is {mask.dtype} of shape {mask.shape}: give a mask, True or False for each of the "
            f"{len(given)} samples"
        )
    mask = mask.astype(bool)
    nothing = mask & (given == UNLABELED)
    if nothing.any():
        raise InputError(f"trusted: sample {int(np.argmax(nothing))} has no label to trust")
    return mask
