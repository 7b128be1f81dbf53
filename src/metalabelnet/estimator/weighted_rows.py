"""A scikit-learn classifier fitted to soft labels: each row is repeated for each class, with its weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]

MIN_SHARE = 0.02  # of a class in a soft label: smaller ones are dropped, and the others share their weight
UNIFORM_SHARE = 0.01  # of predicted probabilities: trees predict zeros, which have no logarithm


def repeat_rows(q: Array, w: Array, min_share: float = MIN_SHARE) -> tuple[Labels, Labels, Array]:
    """Return position, class and weight of the rows that stand for soft labels q, (n, C), with weights w, (n,).

    The weights of a row sum to w. Rows of weight 0 are left out.
    """
    kept = np.where((q >= min_share) | (q == q.max(1, keepdims=True)), q, 0.0)
    weights = w[:, None] * kept / kept.sum(1, keepdims=True)
    rows, labels = np.nonzero(weights)
    return rows, labels, weights[rows, labels]


@dataclass(frozen=True, kw_only=True)
class FittedRows:
    """A fitted classifier. Its class k is `present[k]`; without an estimator all of them are equally likely."""

    estimator: Any
    present: Labels
    classes: int

    def log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of each class, (n, C), finite everywhere."""
        p = np.zeros((X.shape[0], self.classes))
        if len(p):
            p[:, self.present] = 1 / len(self.present) if self.estimator is None else self.estimator.predict_proba(X)
        log_p: Array = np.log((1 - UNIFORM_SHARE) * p + UNIFORM_SHARE / self.classes)
        return log_p


def fit_rows(estimator: Any, X: Any, q: Array, w: Array) -> FittedRows:
    """Fit a clone of the estimator to soft labels q with weights w.

    Labels are numbered without gaps, as XGBoost requires, where a class has no row. Where fewer than two classes have
    one, no estimator is fitted.
    """
    rows, labels, weights = repeat_rows(q, w)
    present, numbers = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        none = np.arange(q.shape[1])
        return FittedRows(estimator=None, present=present if len(present) else none, classes=q.shape[1])
    repeated = X if np.array_equal(rows, np.arange(len(q))) else _safe_indexing(X, rows)
    fitted = clone(estimator)
    fitted.fit(repeated, numbers, **{weight_parameter(estimator): weights})
    return FittedRows(estimator=fitted, present=present, classes=q.shape[1])


def weight_parameter(estimator: Any) -> str:
    """Return the name of the sample weights in `fit`; for a pipeline, those of its last step.

    Raises InputError for anything but a classifier with probabilities and sample weights.
    """
    name = type(estimator).__name__
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        raise InputError(
            f"estimator={estimator!r}: give a scikit-learn classifier, such as HistGradientBoostingClassifier()"
        )
    if not hasattr(estimator, "predict_proba"):
        raise InputError(f"estimator={name}(…) has no predict_proba: choose a classifier that predicts probabilities")
    step, prefix = estimator, ""
    while isinstance(step, Pipeline):
        last, step = step.steps[-1]
        prefix += f"{last}__"
    if not has_fit_parameter(step, "sample_weight"):
        raise InputError(
            f"estimator={name}(…) takes no sample_weight in fit, which soft labels need: choose a classifier that does"
        )
    return f"{prefix}sample_weight"
