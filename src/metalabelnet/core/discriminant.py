"""Linear discriminant analysis on soft labels, for dense features: Gaussian classes that share a covariance matrix.

    x_i        features of sample i, a row of X
    q_i        its soft label, w_i its weight
    N_c        Σ_i w_i q_ic, and N their sum
    μ_c        Σ_i w_i q_ic x_i / N_c
    Σ          (Σ_i w_i x_i x_iᵀ − Σ_c N_c μ_c μ_cᵀ) / N
    Σ_s        (1 − s) Σ + s tr(Σ)/d I, with the shrinkage s
    z_c(x)     x Σ_s⁻¹ μ_c − ½ μ_cᵀ Σ_s⁻¹ μ_c + log(1 + N_c), the logit of class c

It is a linear classifier in closed form. It follows from sums over rows, so that the classifiers that leave out one
fold each cost hardly more than one classifier, and all shrinkages share one eigendecomposition. Like naive Bayes
(`core/naive_bayes.py`) it needs fewer samples than logistic regression, and memorizes fewer wrong labels.

References
----------
.. [1] J. H. Friedman, "Regularized discriminant analysis", JASA 1989, https://doi.org/10.1080/01621459.1989.10478752
.. [2] A. Y. Ng and M. I. Jordan, "On discriminative vs. generative classifiers", NIPS 2001,
   https://papers.nips.cc/paper/2020
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PART_ROWS = 1 << 14
MIN_COUNT = 1e-9  # a class with fewer samples has the mean of all
MIN_VARIANCE = 1e-6  # relative to the mean square of the features: above the rounding of columns that are constant


class Moments(NamedTuple):
    """Sums over rows: N_c, (C,); Σ w q_c x, (C, d); Σ w x xᵀ, (d, d)."""

    counts: Array
    sums: Array
    squares: Array

    def without(self, others: Moments) -> Moments:
        """Return the sums without some of the rows."""
        return Moments(*(mine - theirs for mine, theirs in zip(self, others, strict=True)))


def second_moments(X: Any, w: Array) -> Array:
    """Return Σ w x xᵀ. Products of float32 features are summed in float64 by parts."""
    squares = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), PART_ROWS):
        part = X[start : start + PART_ROWS] * np.sqrt(w[start : start + PART_ROWS, None]).astype(X.dtype)
        squares += part.T @ part
    return squares


def class_sums(X: Any, q: Array, w: Array) -> tuple[Array, Array]:
    """Return N_c and Σ w q_c x."""
    own = q * w[:, None]
    sums: Array = np.asarray(own.T.astype(X.dtype) @ X, np.float64)
    return own.sum(0), sums


def fit_discriminant(X: Any, q: Array, w: Array, shrinkage: float) -> Array:
    """Return coefficients W, (d + 1, C), with z(x) = x W[:-1] + W[-1].

    X          (n, d) dense features
    q, w       (n, C) soft labels, and (n,) weights; rows of weight 0 are ignored
    shrinkage  s, above 0 and at most 1
    """
    return discriminants(Moments(*class_sums(X, q, w), second_moments(X, w)), [shrinkage])[0]


def discriminants(moments: Moments, shrinkages: Sequence[float]) -> list[Array]:
    """Return the coefficients for each shrinkage, from one eigendecomposition of Σ."""
    counts, sums, squares = moments
    total = max(float(counts.sum()), MIN_COUNT)
    is_empty = counts < MIN_COUNT
    means = sums / np.where(is_empty, 1.0, counts)[:, None]
    means[is_empty] = sums.sum(0) / total
    own = np.where(is_empty, 0.0, counts)
    covariance = (squares - (means * own[:, None]).T @ means) / total
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)  # below 0 by rounding
    smallest = MIN_VARIANCE * max(float(np.trace(squares)) / total, np.finfo(float).tiny) / len(squares)
    rotated, prior = means @ axes, np.log1p(np.maximum(counts, 0.0))
    found = []
    for s in shrinkages:
        variance = np.maximum((1 - s) * values + s * values.mean(), smallest)
        W = axes @ (rotated / variance).T
        found.append(np.concatenate([W, (prior - (rotated**2 / variance).sum(1) / 2)[None]]))
    return found
