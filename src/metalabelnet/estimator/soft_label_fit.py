"""The label model of `methods/linear_metalabelnet.py` with any scikit-learn classifier in place of a linear one.

    n, m       training rows with given labels (−1: none), clean rows
    p_g, p_c   the classifier fitted to given labels, to clean labels
    T          the noise matrix, estimated from p_g (`core/transition_matrix.py`)
    q(y)       ∝ exp(a_g log p_g(y) + a_c log p_c(y) + log T(given | y) + c_y), the label pool
    p_s        the classifier fitted to the soft labels q of the training rows and to the clean labels with weight 3

    1. p_g of every row, by a classifier fitted without the row's fold
    2. for each fold k of the clean rows: p_c, T, the pool and so q, from the other clean rows
    3. p_s of every row in fold k, fitted without fold k
    4. a second pool, of p_s and T, gives the final q and the corrected labels
    5. p_s fitted to all rows with the final q, p_g to all given labels, and p_c to all clean labels. The classifier is
       a pool of the three, fitted to the clean rows with predictions that were made without them. At its extremes it is
       one of them: a classifier that averages out wrong labels, such as a random forest, may be best with given labels

A classifier is fitted 12 times to all rows and 16 times to clean rows alone. There is no meta-objective: a solution of
an arbitrary classifier has no gradient. Without clean rows, p_g gives the labels and the classifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import _safe_indexing

from metalabelnet.core.label_pool import LabelPool, fit_label_pool
from metalabelnet.core.noise_counts import log_likelihood, with_missing_column
from metalabelnet.core.transition_matrix import estimate_transitions
from metalabelnet.estimator.weighted_rows import FittedRows, fit_rows
from metalabelnet.methods.content_order import shuffled_rank
from metalabelnet.methods.fixed_features import FOLDS, all_folds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]
    Mask = NDArray[np.bool_]

CLEAN_WEIGHT = 3.0  # of a clean row beside soft labels


@dataclass(frozen=True, kw_only=True)
class PooledClassifier:
    """Fitted classifiers, and the pool of their probabilities, which also calibrates them."""

    models: tuple[FittedRows, ...]
    pool: LabelPool

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities."""
        return self.pool.soft_labels(np.stack([model.log_proba(X) for model in self.models]))


@dataclass(frozen=True, kw_only=True)
class SoftLabelFit:
    """A classifier fitted to soft labels.

    classifier      the classifier; its first model is the one that is fitted to soft labels
    q               (n, C) probabilities of the true class of the training rows
    clean_accuracy  accuracy on the clean rows, each predicted without its fold; None without clean rows
    """

    classifier: PooledClassifier
    q: Array
    clean_accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Samples and labels of n training rows, followed by m clean rows; folds as in `methods/fixed_features.py`."""

    estimator: Any
    X: Any
    given: Labels  # (n + m,); −1 for clean rows
    true: Labels  # (m,)
    classes: int
    fold: Labels
    folds: int

    @property
    def n(self) -> int:
        return len(self.given) - len(self.true)

    def fit(self, q: Array, w: Array) -> FittedRows:
        return fit_rows(self.estimator, self.X, q, w)

    def take(self, rows: Mask) -> Any:
        return _safe_indexing(self.X, np.flatnonzero(rows))

    def log_proba(self, model: FittedRows, rows: Mask) -> Array:
        return model.log_proba(self.take(rows))


def fit_soft_labels(estimator: Any, X: Any, given: Labels, clean: Mask, classes: int) -> SoftLabelFit:
    """Run the steps of the module's description.

    estimator  unfitted classifier
    X          samples: an array, a sparse matrix or a data frame
    given      (N,) labels, −1: none; those of clean rows are correct
    clean      (N,) which rows are clean
    """
    order = np.concatenate([np.flatnonzero(~clean), np.flatnonzero(clean)])
    n = int((~clean).sum())
    true, ordered = given[order[n:]], given[order].copy()
    folds = max(2, min(FOLDS, len(true) or len(given)))
    X = X if (order == np.arange(len(order))).all() else _safe_indexing(X, order)
    ordered[n:] = -1
    rows = _Rows(
        estimator=estimator,
        X=X,
        given=ordered,
        true=true,
        classes=classes,
        fold=all_folds(ordered[:n], true, shuffled_rank(X, ordered), folds),
        folds=folds,
    )
    log_p_given = _cross_fit_given(rows)
    if not len(true):
        uncalibrated = LabelPool(np.ones(1), np.zeros(classes))
        classifier = PooledClassifier(models=(rows.fit(*_given_labels(rows)),), pool=uncalibrated)
        return SoftLabelFit(classifier=classifier, q=np.exp(log_p_given), clean_accuracy=None)
    return _fit_with_clean(rows, log_p_given)


def _fit_with_clean(r: _Rows, log_p_given: Array) -> SoftLabelFit:
    """Run steps 2 to 5."""
    n, is_clean = r.n, np.arange(len(r.given)) >= r.n
    log_p = np.zeros_like(log_p_given)
    p_clean = _CleanModels(r)
    for k in range(r.folds):
        use = is_clean & (r.fold != k)
        log_T = _noise_opinion(r, log_p_given, use)
        pool = fit_label_pool(
            np.stack([log_p_given[use], p_clean.out_of_fold_log_proba(k), log_T[use]]), r.true[use[n:]]
        )
        opinions = np.stack([log_p_given[:n], r.log_proba(p_clean.fit_without(k), ~is_clean), log_T[:n]])
        q, w = _with_clean_rows(r, pool.soft_labels(opinions))
        held_out = r.fold == k
        log_p[held_out] = r.log_proba(r.fit(q, w * ~held_out), held_out)
    opinions = np.stack([log_p, _noise_opinion(r, log_p_given, is_clean)])
    soft_labels = fit_label_pool(opinions[:, n:], r.true).soft_labels(opinions[:, :n])
    models = r.fit(*_with_clean_rows(r, soft_labels)), r.fit(*_given_labels(r)), p_clean.fit_without()
    predicted = np.stack([log_p[n:], log_p_given[n:], p_clean.out_of_fold_log_proba()])
    return SoftLabelFit(
        classifier=PooledClassifier(models=models, pool=fit_label_pool(predicted, r.true)),
        q=soft_labels,
        clean_accuracy=100 * float((_cross_fit_pool(r, predicted) == r.true).mean()),
    )


def _given_labels(r: _Rows) -> tuple[Array, Array]:
    return np.eye(r.classes)[np.maximum(r.given, 0)], (r.given >= 0).astype(np.float64)


def _with_clean_rows(r: _Rows, soft_labels: Array) -> tuple[Array, Array]:
    """Return labels and weights of all rows: soft labels of the training rows, labels of the clean rows."""
    q = np.concatenate([soft_labels, np.eye(r.classes)[r.true]])
    return q, np.where(np.arange(len(q)) < r.n, 1.0, CLEAN_WEIGHT)


def _cross_fit_given(r: _Rows) -> Array:
    """Return log p_g of every row, by a classifier that was fitted without the row's fold."""
    q, w = _given_labels(r)
    log_p = np.zeros_like(q)
    for k in range(r.folds):
        held_out = r.fold == k
        log_p[held_out] = r.log_proba(r.fit(q, w * ~held_out), held_out)
    return log_p


class _CleanModels:
    """Classifiers fitted to the clean rows without some folds, each fitted once."""

    def __init__(self, r: _Rows) -> None:
        self.r, self.models = r, dict[tuple[int, ...], FittedRows]()
        self.q = np.full((len(r.given), r.classes), 1 / r.classes)
        self.q[r.n :] = np.eye(r.classes)[r.true]

    def fit_without(self, *folds: int) -> FittedRows:
        """Return p_c from the clean rows outside of these folds."""
        key = tuple(sorted(set(folds)))
        if key not in self.models:
            r = self.r
            use = (np.arange(len(r.given)) >= r.n) & ~np.isin(r.fold, key)
            self.models[key] = r.fit(self.q, use.astype(np.float64))
        return self.models[key]

    def out_of_fold_log_proba(self, *folds: int) -> Array:
        """Return log p_c of the clean rows outside of these folds, each fitted without them and without its own."""
        r = self.r
        log_p, is_clean = np.zeros((len(r.given), r.classes)), np.arange(len(r.given)) >= r.n
        for j in set(range(r.folds)) - {*folds}:
            held_out = is_clean & (r.fold == j)
            log_p[held_out] = r.log_proba(self.fit_without(j, *folds), held_out)
        others: Array = log_p[is_clean & ~np.isin(r.fold, folds)]
        return others


def _noise_opinion(r: _Rows, log_p_given: Array, use: Mask) -> Array:
    """Return log T(given | y) of every row and class, with T from these clean rows; 0 where there is no given label."""
    labeled = r.given >= 0
    if not labeled.any():
        return np.zeros_like(log_p_given)
    p = torch.from_numpy(np.exp(log_p_given))
    true, given = torch.from_numpy(r.true[use[r.n :]]), torch.from_numpy(r.given[labeled])
    T = estimate_transitions(p[use], true, p[labeled], given).T.double().numpy()
    opinion: Array = log_likelihood(with_missing_column(T), r.given)
    return opinion


def _cross_fit_pool(r: _Rows, opinions: Array) -> Labels:
    """Return the classes of the clean rows, each by a pool that was fitted without its fold."""
    classes, fold = np.zeros_like(r.true), r.fold[r.n :]
    for k in range(r.folds):
        rows = fold == k
        classes[rows] = fit_label_pool(opinions[:, ~rows], r.true[~rows]).logits(opinions[:, rows]).argmax(1)
    return classes
