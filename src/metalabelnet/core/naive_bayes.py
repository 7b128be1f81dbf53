"""Multinomial naive Bayes on soft labels, for nonnegative sparse features such as TF-IDF.

    x_i        features of sample i, a row of X
    q_i        its soft label, w_i its weight
    N_jc       Σ_i w_i q_ic x_ij
    z_c(x)     Σ_j x_j log((N_jc + s) / Σ_k (N_kc + s)) + log(1 + Σ_i w_i q_ic), the logit of class c, with smoothing s

The logits are linear in x, so that naive Bayes is a linear classifier. It is found by counting, needs fewer samples
than logistic regression, and memorizes wrong labels less; its probabilities are too certain. Without sample i, N is
N − w_i q_i x_i: predictions that leave out one sample cost no more than others.

References
----------
.. [1] A. Y. Ng and M. I. Jordan, "On discriminative vs. generative classifiers", NIPS 2001,
   https://papers.nips.cc/paper/2020
.. [2] J. D. M. Rennie, L. Shih, J. Teevan and D. R. Karger, "Tackling the poor assumptions of naive Bayes text
   classifiers", ICML 2003, https://people.csail.mit.edu/jrennie/papers/icml03-nb.pdf
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PART_VALUES = 1 << 22  # of X that are in memory at once


def fit_naive_bayes(X: Any, q: Array, w: Array, smoothing: float) -> Array:
    """Return coefficients W, (d + 1, C), with z(x) = x W[:-1] + W[-1].

    X          (n, d) sparse features, none negative
    q, w       (n, C) soft labels, and (n,) weights; rows of weight 0 are ignored
    smoothing  s > 0
    """
    counts = _count(X, q * w[:, None]) + smoothing
    return np.concatenate([np.log(counts / counts.sum(0)), np.log1p(w @ q)[None]])


def leave_one_out_logits(X: Any, q: Array, w: Array, smoothing: float) -> Array:
    """Return the logits of every row by the counts of all other rows, (n, C)."""
    own = q * w[:, None]
    counts, total, length = _count(X, own), w @ q, np.asarray(X.sum(1), np.float64).reshape(-1, 1)
    sums = counts.sum(0) + smoothing * X.shape[1] - length * own
    z: Array = np.log1p(total - own) - length * np.log(sums)
    log_counts = np.log(counts + smoothing)
    step = max(1, PART_VALUES * len(q) // max(1, X.nnz))
    for start in range(0, len(q), step):
        part = X[start : start + step].astype(np.float64)
        z[start : start + step] += part @ log_counts
        for c in range(q.shape[1]):  # a row counts for the classes of its own label alone
            rows = np.flatnonzero(own[start : start + step, c])
            some = part[rows]
            count = counts[some.indices, c]
            # By rounding a difference may be below 0.
            others = np.maximum(count - some.data * np.repeat(own[start + rows, c], np.diff(some.indptr)), 0)
            some.data *= np.log((others + smoothing) / (count + smoothing))
            z[start + rows, c] += some @ np.ones(X.shape[1])
    return z


def _count(X: Any, weights: Array) -> Array:
    """Return N, (d, C)."""
    counts: Array = np.asarray(X.T @ weights.astype(X.dtype, copy=False), np.float64)
    return counts
