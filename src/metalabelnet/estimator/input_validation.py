"""Validation of the arguments of `fit` with scikit-learn's functions: samples, labels and the clean mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import assert_all_finite, check_array, column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from metalabelnet.data.arrays import channels_first, check_channel_order
from metalabelnet.data.rows import MAX_ABS_VALUE, UNLABELED, UNLABELED_NAMES
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.errors import InputError, shorten_value
from metalabelnet.methods import LINEAR_METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]

PART_VALUES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class SampleFormat:
    """Shape of a sample (images with channels first) and how its values are scaled.

    Columns of a table and channels of floating-point images are standardized to mean 0 and standard deviation 1; a
    constant one becomes 0. Images in uint8 are scaled to [−1, 1] later, where the network reads them.
    """

    shape: tuple[int, ...]
    is_uint8: bool
    mean: Array | None
    scale: Array | None

    @staticmethod
    def from_array(x: Array, *, standardize: bool) -> SampleFormat:
        """Return the format of these samples, with mean and scale measured on them."""
        if not isinstance(standardize, bool | np.bool_):
            raise InputError(f"standardize={shorten_value(standardize)}: choose from True, False")
        if x.dtype == np.uint8 or not standardize or hasattr(x, "toarray"):
            return SampleFormat(shape=x.shape[1:], is_uint8=x.dtype == np.uint8, mean=None, scale=None)
        axes = (0, *range(2, x.ndim))
        count = x.size / x.shape[1]

        def total(values: Iterator[Array]) -> Array:
            return np.asarray(sum(part.sum(axes, dtype=np.float64, keepdims=True)[0] for part in values))

        with np.errstate(over="ignore", invalid="ignore"):
            mean = total(_parts(x)) / count
            std = np.sqrt(total((part - mean) ** 2 for part in _parts(x)) / count)
        if not np.isfinite(std).all():
            raise InputError(f"X has values up to {np.abs(x).max():g}, too large to standardize: scale them down")
        # The standard deviation of a constant column is not 0 after rounding.
        constant = std <= 10 * np.finfo(x.dtype).eps * np.abs(mean)
        return SampleFormat(shape=x.shape[1:], is_uint8=False, mean=mean, scale=np.where(constant, 1.0, std))

    def check(self, x: Array) -> None:
        """Raise an error for samples of another shape or type."""
        if x.shape[1:] != self.shape or (x.dtype == np.uint8) != self.is_uint8:
            raise InputError(
                f"samples are {x.dtype} of shape {x.shape[1:]}, but the classifier was trained on "
                f"{'uint8' if self.is_uint8 else 'floating-point numbers'} of shape {self.shape}"
            )

    def to_tensor(self, x: Any) -> Tensor | SparseTensor:
        """Return the scaled samples as uint8 or float32; a sparse table stays sparse."""
        if hasattr(x, "toarray"):
            if not (np.abs(x.data) <= MAX_ABS_VALUE).all():
                raise _range_error(x.data)
            return SparseTensor(x.astype(np.float32))
        if self.is_uint8:
            return torch.from_numpy(np.array(x, dtype=np.uint8, order="C"))
        converted = np.empty(x.shape, np.float32)
        with np.errstate(over="ignore"):
            for part, target in zip(_parts(x), _parts(converted), strict=True):
                if self.mean is not None and self.scale is not None:
                    part = (part - self.mean.astype(x.dtype)) / self.scale.astype(x.dtype)
                target[:] = part
                if not (np.abs(target) <= MAX_ABS_VALUE).all():
                    raise _range_error(x)
        return torch.from_numpy(converted)


def _parts(x: Array) -> Iterator[Array]:
    """Yield some rows after the others: few enough to stay in the processor's cache."""
    rows = max(1, PART_VALUES // max(1, math.prod(x.shape[1:])))
    for start in range(0, len(x), rows):
        yield x[start : start + rows]


def _range_error(x: Array) -> InputError:
    return InputError(f"X has values up to {np.abs(x).max():g}, too large for float32: scale them down")


def is_linear(estimator: Any) -> bool:
    """Return whether the estimator's method fits a linear layer, to which tables may be sparse."""
    method, net = estimator.method, estimator.net
    return isinstance(method, str) and method in LINEAR_METHODS and isinstance(net, str) and net in ("auto", "linear")


def check_no_texts(estimator: Any, X: Any) -> None:
    """Raise InputError for texts, as a list or as one column: the message shows how to encode them."""
    values = X.to_numpy() if hasattr(X, "to_numpy") else X
    if isinstance(values, list | tuple) and all(isinstance(row, list | tuple) and len(row) == 1 for row in values):
        values = np.array([row[0] for row in values], object)
    if isinstance(values, np.ndarray):
        is_column = values.ndim == 1 or values.shape[1:] == (1,)
        values = values.ravel() if is_column and values.dtype.kind in "OUT" else ()
    is_text = isinstance(values, list | tuple | np.ndarray) and len(values) > 0
    if is_text and all(isinstance(value, str) for value in values):
        own = getattr(estimator, "estimator", None)
        classifier = "'metalabelnet-plus'" if own is None else "estimator=LogisticRegression()"
        raise InputError(
            f"X contains texts: encode them, as in make_pipeline(TfidfVectorizer(), MetaLabelNetClassifier({classifier}"
            ")).fit(texts, y, metalabelnetclassifier__clean_mask=clean_mask)"
        )


def read_table(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return samples for a scikit-learn classifier: a data frame as it is, else numbers, sparse if it accepts them.

    Missing values are left to the classifier. Sets or compares `n_features_in_`.
    """
    check_no_texts(estimator, X)
    if hasattr(X, "iloc"):
        return validate_data(estimator, X, reset=reset, skip_check_array=True)
    sparse = ("csr",) if get_tags(estimator).input_tags.sparse else False
    return validate_data(estimator, X, reset=reset, accept_sparse=sparse, ensure_all_finite="allow-nan")


def read_samples(estimator: Any, X: Any, channels: str, *, reset: bool, accept_sparse: bool = False) -> Any:
    """Return a table as float64, or images as uint8 or float32 with channels first.

    Sets `n_features_in_` of the estimator, or compares with it if `reset` is False.
    """
    check_channel_order(channels)
    check_no_texts(estimator, X)
    if hasattr(X, "toarray") and not accept_sparse:
        raise InputError(
            f"X is sparse, and method={estimator.method!r} trains a network, which needs dense samples: choose "
            "method='metalabelnet-plus' or estimator=LogisticRegression(), or pass X.toarray()"
        )
    if getattr(X, "ndim", None) is None:
        X = X if hasattr(X, "__array__") or np.ndim(X) <= 2 else np.asarray(X)
    if getattr(X, "ndim", 2) <= 2:
        formats = ("csr",) if accept_sparse else False
        return validate_data(estimator, X, reset=reset, dtype=np.float64, accept_sparse=formats)
    images = channels_first(check_array(X, allow_nd=True, dtype=None, input_name="X"), channels)
    if images.dtype.kind not in "biuf":
        raise InputError(f"images of type {images.dtype}: give uint8 or floating-point numbers")
    if reset:
        estimator.n_features_in_ = int(np.prod(images.shape[1:]))
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    with np.errstate(over="ignore"):  # `to_tensor` raises an error for values that are too large
        return images if images.dtype == np.uint8 else images.astype(np.float32)


def read_labels(y: Any, name: str) -> tuple[NDArray[np.int64], Array]:
    """Return the class index of each sample, −1 where it is unlabeled, and the sorted classes."""
    if y is None:
        raise InputError(f"{name} requires y to be passed, but the target y is None")
    y = as_column(y, warn=True)
    unlabeled = unlabeled_mask(y)
    if y.dtype.kind not in "OUST":
        assert_all_finite(y[~unlabeled], input_name="y")
    if unlabeled.all():
        raise InputError("no sample has a label: label at least two classes")
    labels = objects_to_numbers(y[~unlabeled])
    try:
        check_classification_targets(labels)
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = sorted({type(value).__name__ for value in labels})
        found = f"the type {kinds[0]}" if len(kinds) == 1 else f"different types ({', '.join(kinds)})"
        raise InputError(f"labels have {found}: give all as text or all as numbers") from None
    if len(classes) < 2:
        raise InputError(f"y has only one class, {str(classes[0])!r}: a classifier needs at least two")
    given = np.full(len(y), UNLABELED, dtype=np.int64)
    given[~unlabeled] = numbers
    return given, classes


def as_column(y: Any, *, warn: bool = False) -> Array:
    """Return the labels as one column.

    Pandas labels are converted here, because scikit-learn converts integers beside missing values to floats.
    """
    column: Array = column_or_1d(y.to_numpy() if hasattr(y, "to_numpy") else y, warn=warn)
    return column


def objects_to_numbers(labels: Array) -> Array:
    """Return an object array of numbers as numbers: next to None, numpy stores numbers as objects."""
    numbers = labels.dtype.kind == "O" and all(isinstance(value, Real | np.bool_) for value in labels)
    return np.array(labels.tolist()) if numbers else labels


def unlabeled_mask(y: Array) -> NDArray[np.bool_]:
    """Return which labels mean unlabeled."""
    if y.dtype.kind in "OUST":
        return np.fromiter((_is_unlabeled(value) for value in y), dtype=bool, count=len(y))
    mask: NDArray[np.bool_] = y == UNLABELED if y.dtype.kind in "if" else np.zeros(len(y), dtype=bool)
    return mask | np.isnan(y) if y.dtype.kind == "f" else mask


def _is_unlabeled(value: Any) -> bool:
    """Return whether a label is None, an empty string, −1 (also as a string), NaN, or a missing value of pandas."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return value in UNLABELED_NAMES if isinstance(value, str) else bool(value == UNLABELED or value != value)


def read_clean_mask(clean_mask: Any, given: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which samples belong to the clean set."""
    if clean_mask is None:
        return np.zeros(len(given), dtype=bool)
    mask = np.asarray(clean_mask)
    if mask.dtype == object and any(type(value).__name__ == "NAType" for value in mask.flat):
        raise InputError("clean_mask has missing values: give True or False for each sample")
    if mask.shape != given.shape or (mask.dtype != bool and not np.isin(mask, (0, 1)).all()):
        raise InputError(
            f"clean_mask is {mask.dtype} of shape {mask.shape}: give True or False for each of the {len(given)} samples"
        )
    mask = mask.astype(bool)
    unlabeled = mask & (given == UNLABELED)
    if unlabeled.any():
        raise InputError(f"clean_mask: sample {int(np.argmax(unlabeled))} is unlabeled; a clean sample needs a label")
    return mask
