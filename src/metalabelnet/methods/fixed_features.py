"""The features, labels and folds of a logistic method: NumPy arrays of the training rows followed by the clean rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.core.annotations import Annotations
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.sparse_tensor import SparseTensor, stack_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.rows import Rows

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]

FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class FixedFeatures:
    """Features and labels of n training rows followed by m clean rows.

    Attributes
    ----------
    X : ndarray or scipy.sparse.csr_matrix
        (n + m, d) features. Dense columns are standardized, except for those of zeros and ones.
    given : ndarray
        (n + m,) given labels; −1: none.
    true : ndarray
        (m,) labels of the clean rows.
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
    """

    X: Any
    given: Labels
    true: Labels
    fold: Labels
    folds: int
    classes: int
    shift: Array
    scale: Array
    annotations: Annotations | None = None

    @property
    def n(self) -> int:
        """The number of training rows."""
        return len(self.given) - len(self.true)

    @property
    def mean_square(self) -> float:
        """The mean squared length of a row: the scale of λ."""
        squares = self.X.multiply(self.X).sum() if hasattr(self.X, "multiply") else (self.X**2).sum()
        return max(float(squares) / len(self.given), 1e-12)

    def subset(self, max_rows: int, folds: int) -> tuple[FixedFeatures, Labels]:
        """Return at most `max_rows` training rows and all clean rows, in new folds, and their positions among all rows.

        The training rows are at regular intervals in the order of their given labels, so that labels keep their shares.
        """
        count = min(max_rows, self.n)
        order = np.argsort(self.given[: self.n], kind="stable")
        train = np.sort(order[np.arange(count) * self.n // count])
        rows = np.concatenate([train, np.arange(self.n, len(self.given))])
        fold = np.concatenate([stratified_folds(self.given[train], folds), stratified_folds(self.true, folds)])
        annotations = None if self.annotations is None else self.annotations.take(rows)
        part = dataclasses.replace(
            self, X=self.X[rows], given=self.given[rows], fold=fold, folds=folds, annotations=annotations
        )
        return part, rows

    def linear_layer(self, W: Array) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the layer that applies coefficients W to features as they came."""
        weight = W[:-1] / self.scale[:, None]
        bias = W[-1] - self.shift @ weight
        return torch.from_numpy(weight.T.copy()), torch.from_numpy(bias)


def make_features(train: Rows, clean: Rows) -> FixedFeatures:
    """Return the features of training and clean rows."""
    given = torch.cat([train.given, clean.given]).cpu().numpy()
    true = clean.true.cpu().numpy()
    folds = max(2, min(FOLDS, len(true)))
    X = stack_rows(_matrix(train.x), _matrix(clean.x))
    shift, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
    if isinstance(X, np.ndarray):
        is_number = ((X != 0) & (X != 1)).any(0)
        shift, scale = np.where(is_number, X.mean(0), 0.0), np.where(is_number, X.std(0), 1.0)
        scale[scale == 0] = 1.0
        X -= shift
        X /= scale
    fold = np.concatenate([stratified_folds(given[: len(train)], folds), stratified_folds(true, folds)])
    annotations = train.annotations
    if annotations is not None:  # clean rows from elsewhere have none
        none = Annotations.empty(len(clean), annotations.names)
        annotations = annotations.concat(none if clean.annotations is None else clean.annotations)
    return FixedFeatures(
        X=X,
        given=given,
        true=true,
        fold=fold,
        folds=folds,
        classes=len(train.classes),
        shift=shift,
        scale=scale,
        annotations=annotations,
    )


def _matrix(x: Samples) -> Any:
    if isinstance(x, SparseTensor):
        return x.csr.astype(np.float64)
    parts = [to_input(part, torch.float64).flatten(1).cpu().numpy() for part in chunks(x)]
    return np.concatenate(parts) if parts else np.zeros((0, int(np.prod(x.shape[1:]))))


def stratified_folds(labels: Labels, folds: int) -> Labels:
    """Return a fold for each row; rows of the same label go to the folds in turn."""
    fold = np.empty(len(labels), np.int64)
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % folds
    return fold
