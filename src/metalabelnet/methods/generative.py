"""The generative classifier beside a logistic regression: it needs fewer rows and memorizes fewer wrong labels.

    sparse features, none negative        naive Bayes with smoothing s; a row is predicted without itself
    dense features, up to 1,024 columns   linear discriminant analysis with shrinkage s; a row is predicted without its
                                          fold
    other features                        none

Both are linear classifiers in closed form, and s is chosen as the value with which the pool of the two classifiers
predicts the given labels best (`methods/given_label_classifier.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.core.discriminant import Moments, class_sums, discriminants, fit_discriminant, second_moments
from metalabelnet.core.logistic import logits
from metalabelnet.core.naive_bayes import fit_naive_bayes, leave_one_out_logits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from metalabelnet.methods.fixed_features import FixedFeatures

    Array = NDArray[np.float64]


class GenerativeModel(ABC):
    """A classifier with one parameter s, and predictions for rows that it was not fitted to."""

    candidates: tuple[float, ...]

    @abstractmethod
    def held_out_logits(self, f: FixedFeatures, q: Array, w: Array, values: Sequence[float]) -> Iterator[Array]:
        """Yield the (n + m, C) logits of all rows, each without the row's label, for each value of s."""

    @abstractmethod
    def fit(self, X: Any, q: Array, w: Array, s: float) -> Array:
        """Return the coefficients, (d + 1, C), of labels and weights."""


class NaiveBayes(GenerativeModel):
    """Multinomial naive Bayes (`core/naive_bayes.py`)."""

    candidates = (2.0, 1.0, 0.5, 0.25, 0.125, 0.06)  # a row of TF-IDF has length 1

    def held_out_logits(self, f: FixedFeatures, q: Array, w: Array, values: Sequence[float]) -> Iterator[Array]:
        """Yield logits by the counts of all other rows."""
        return (leave_one_out_logits(f.X, q, w, s) for s in values)

    def fit(self, X: Any, q: Array, w: Array, s: float) -> Array:
        """Return the coefficients."""
        return fit_naive_bayes(X, q, w, s)


class Discriminant(GenerativeModel):
    """Linear discriminant analysis (`core/discriminant.py`)."""

    candidates = (0.9, 0.6, 0.3, 0.1, 0.03, 0.01)

    def held_out_logits(self, f: FixedFeatures, q: Array, w: Array, values: Sequence[float]) -> Iterator[Array]:
        """Yield logits by the rows of the other folds."""
        found = [np.zeros_like(q) for _ in values]
        folds = [f.fold == k for k in range(f.folds)]
        parts = [Moments(*class_sums(f.X[k], q[k], w[k]), second_moments(f.X[k], w[k])) for k in folds]
        everything = Moments(*(sum(sums) for sums in zip(*parts, strict=True)))
        for rows, part in zip(folds, parts, strict=True):
            for z, W in zip(found, discriminants(everything.without(part), values), strict=True):
                z[rows] = logits(f.X[rows], W)
        yield from found

    def fit(self, X: Any, q: Array, w: Array, s: float) -> Array:
        """Return the coefficients."""
        return fit_discriminant(X, q, w, s)


def generative_model(f: FixedFeatures) -> GenerativeModel | None:
    """Return the classifier that suits the features."""
    if f.suits_naive_bayes:
        return NaiveBayes()
    return Discriminant() if f.suits_discriminant else None
