"""The features, labels and folds of a logistic method: NumPy arrays of the training rows followed by the clean rows."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.core.annotations import Annotations
from metalabelnet.core.label_shift import clean_sample_weights
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.sparse_tensor import SparseTensor, stack_rows
from metalabelnet.methods.content_order import shuffled_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.rows import Rows

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]

FOLDS = 5
# Larger features are kept in float32, which halves memory and time. Sums over rows stay accurate to 1e-6, and solutions
# are found to 1e-4.
MAX_FLOAT64_VALUES = 1 << 22
PART_ROWS = 1 << 14
MAX_ROTATED_COLUMNS = 1024  # more take longer to rotate than is gained; a covariance matrix would be large, too


@dataclass(frozen=True, kw_only=True)
class FixedFeatures:
    """Features and labels of n training rows followed by m clean rows.

    Attributes
    ----------
    X : ndarray or scipy.sparse.csr_matrix
        (n + m, d) features, float64, or float32 if there are many. Dense columns are standardized, except for those of
        zeros and ones, and then rotated to their principal axes, where a solution takes fewer steps.
    given : ndarray
        (n + m,) given labels; −1: none.
    true : ndarray
        (m,) labels of the clean rows.
    rank : ndarray
        (n + m,) numbers that put the rows into an order that depends on their content alone
        (`methods/content_order.py`). Where rows are chosen, or divided into folds, they are taken in this order, so
        that the order in which they came changes nothing.
    fold : ndarray
        (n + m,) fold of each row, 0 to `folds` − 1. Every fold has about the same share of each label.
    folds : int
        Number of folds.
    classes : int
        Number of classes.
    annotations : Annotations or None
        Labels of all rows by several annotators.
    shift, scale : ndarray
        (d,) what was subtracted from the columns, and what they were then divided by.
    rotation : ndarray or None
        (d, d) orthogonal matrix that the rows were then multiplied by; it changes no solution. None: not rotated.
    """

    X: Any
    given: Labels
    true: Labels
    rank: Labels
    fold: Labels
    folds: int
    classes: int
    shift: Array
    scale: Array
    rotation: Array | None = None
    annotations: Annotations | None = None

    @property
    def n(self) -> int:
        """The number of training rows."""
        return len(self.given) - len(self.true)

    @functools.cached_property
    def mean_square(self) -> float:
        """The mean squared length of a row: the scale of λ."""
        if self.is_sparse:
            squares = float(self.X.multiply(self.X).sum())
        else:
            squares = sum(float((part.astype(np.float64) ** 2).sum()) for part in _parts(self.X))
        return max(squares / len(self.given), 1e-12)

    @functools.cached_property
    def clean_weights(self) -> Array:
        """(m,) weights of the clean rows, 1 unless they were drawn by class (`core/label_shift.py`)."""
        return clean_sample_weights(self.given[: self.n], self.given[self.n :], self.true, self.classes)

    @property
    def is_sparse(self) -> bool:
        """Whether the features are a SciPy sparse matrix."""
        return hasattr(self.X, "multiply")

    @functools.cached_property
    def suits_naive_bayes(self) -> bool:
        """Whether the features are like counts: sparse, and none negative."""
        return self.is_sparse and self.X.nnz > 0 and float(self.X.data.min()) >= 0

    @property
    def suits_discriminant(self) -> bool:
        """Whether the features are dense and have few enough columns for a covariance matrix."""
        return not self.is_sparse and self.X.shape[1] <= MAX_ROTATED_COLUMNS

    def subset(self, max_rows: int, folds: int) -> tuple[FixedFeatures, Labels]:
        """Return at most `max_rows` training rows and all clean rows, in new folds, and their positions among all rows.

        The training rows are at regular intervals in the order of their given labels, so that labels keep their shares.
        """
        count = min(max_rows, self.n)
        order = np.lexsort((self.rank[: self.n], self.given[: self.n]))
        train = np.sort(order[np.arange(count) * self.n // count])
        rows = np.concatenate([train, np.arange(self.n, len(self.given))])
        rank = self.rank[rows]
        fold = all_folds(self.given[train], self.true, rank, folds)
        annotations = None if self.annotations is None else self.annotations.take(rows)
        part = dataclasses.replace(
            self, X=self.X[rows], given=self.given[rows], rank=rank, fold=fold, folds=folds, annotations=annotations
        )
        return part, rows

    def linear_layer(self, W: Array) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the layer that applies coefficients W to features as they came."""
        weight = (W[:-1] if self.rotation is None else self.rotation @ W[:-1]) / self.scale[:, None]
        bias = W[-1] - self.shift @ weight
        return torch.from_numpy(weight.T.copy()), torch.from_numpy(bias)


def make_features(train: Rows, clean: Rows) -> FixedFeatures:
    """Return the features of training and clean rows."""
    given = torch.cat([train.given, clean.given]).cpu().numpy()
    true = clean.true.cpu().numpy()
    folds = max(2, min(FOLDS, len(true)))
    dtype = np.float64 if _count_values(train.x) <= MAX_FLOAT64_VALUES else np.float32
    X = _matrix((train.x, clean.x), dtype)
    rank = shuffled_rank(X, given)
    shift, scale, rotation = np.zeros(X.shape[1]), np.ones(X.shape[1]), None
    if isinstance(X, np.ndarray):
        is_number = np.any([((part != 0) & (part != 1)).any(0) for part in _parts(X)], 0)
        mean = sum(part.sum(0, dtype=np.float64) for part in _parts(X)) / len(X)
        variance = sum(((part - mean) ** 2).sum(0) for part in _parts(X)) / len(X)
        shift, scale = np.where(is_number, mean, 0.0), np.where(is_number, np.sqrt(variance), 1.0)
        scale[scale == 0] = 1.0
        X -= shift.astype(X.dtype)
        X /= scale.astype(X.dtype)
        if X.shape[1] <= MAX_ROTATED_COLUMNS:
            rotation = _rotate_to_principal_axes(X, rank)
    annotations = train.annotations
    if annotations is not None:  # clean rows from elsewhere have none
        none = Annotations.empty(len(clean), annotations.names)
        annotations = annotations.concat(none if clean.annotations is None else clean.annotations)
    return FixedFeatures(
        X=X,
        given=given,
        true=true,
        rank=rank,
        fold=all_folds(given[: len(train)], true, rank, folds),
        folds=folds,
        classes=len(train.classes),
        shift=shift,
        scale=scale,
        rotation=rotation,
        annotations=annotations,
    )


def _rotate_to_principal_axes(X: Any, rank: Labels) -> Array:
    """Multiply the rows, in place, by the eigenvectors of the second moments of some of them; return these."""
    step = max(1, len(X) // PART_ROWS)
    some = X if step == 1 else X[rank % step == 0]
    rotation: Array = np.linalg.eigh((some.T @ some).astype(np.float64))[1]
    for part in _parts(X):
        part[:] = part @ rotation.astype(X.dtype)
    return rotation


def _matrix(samples: Sequence[Samples], dtype: type[np.floating[Any]]) -> Any:
    """Return the features of all samples, one after the other; they are sparse if all of the samples are."""
    sparse = [x.csr.astype(dtype) for x in samples if isinstance(x, SparseTensor)]
    if len(sparse) == len(samples):
        return functools.reduce(stack_rows, sparse)
    torch_dtype = torch.float64 if dtype is np.float64 else torch.float32
    matrix = np.empty((sum(map(len, samples)), int(np.prod(samples[0].shape[1:]))), dtype)
    start = 0
    for x in samples:
        for part in chunks(x):
            matrix[start : start + len(part)] = to_input(part, torch_dtype).flatten(1).cpu().numpy()
            start += len(part)
    return matrix


def _count_values(x: Samples) -> int:
    """Return the number of values that are stored."""
    return int(x.csr.nnz) if isinstance(x, SparseTensor) else len(x) * int(np.prod(x.shape[1:]))


def _parts(X: Any) -> Iterator[Any]:
    """Yield some rows after the others, so that no copy of a large matrix is made."""
    for start in range(0, len(X), PART_ROWS):
        yield X[start : start + PART_ROWS]


def all_folds(given: Labels, true: Labels, rank: Labels, folds: int) -> Labels:
    """Return the folds of training rows with given labels, followed by those of clean rows."""
    n = len(given)
    return np.concatenate([stratified_folds(given, rank[:n], folds), stratified_folds(true, rank[n:], folds)])


def stratified_folds(labels: Labels, rank: Labels, folds: int) -> Labels:
    """Return a fold for each row; rows of the same label go to the folds in turn, in the order of their rank."""
    fold = np.empty(len(labels), np.int64)
    fold[np.lexsort((rank, labels))] = np.arange(len(labels)) % folds
    return fold
