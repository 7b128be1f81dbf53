"""The label pool: soft labels as a log-linear pool of several opinions, with a learned trust in each.

    ℓ_f(y)     log-probability of class y according to opinion f: a classifier trained on given labels, one trained on
               clean labels, log T(given label | y) of the noise matrix
    q(y)       ∝ exp(Σ_f a_f ℓ_f(y) + c_y)
    a, c       minimize the weighted cross-entropy of q on the clean samples + s/2 (‖a − 1‖² + ‖c‖²)

The problem is convex, with a number for each opinion and each class. Limits: a = 1 for the noise matrix and the
classifier trained on clean labels, and 0 elsewhere, is Bayes' rule; a large trust in the noise matrix alone gives the
given labels; a = 0 for it ignores them.

References
----------
.. [1] G. E. Hinton, "Training products of experts by minimizing contrastive divergence", Neural Computation 2002,
   https://doi.org/10.1162/089976602760128018
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metalabelnet.core.logistic import log_softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PRIOR_STRENGTH = 2.0  # s: the precision of a Gaussian prior
MAX_NEWTON_STEPS = 50
TOLERANCE = 1e-8


class LabelPool(NamedTuple):
    """Trust a in each opinion, and bias c of each class."""

    trust: Array
    bias: Array

    def logits(self, opinions: Array) -> Array:
        """Return Σ_f a_f ℓ_f + c for opinions of shape (F, n, C)."""
        return np.tensordot(self.trust, opinions, 1) + self.bias

    def coefficients(self, opinions: Sequence[Array]) -> Array:
        """Return the coefficients, (d + 1, C), of the pool of linear classifiers with these coefficients."""
        W = np.tensordot(self.trust, np.stack(opinions), 1)
        W[-1] += self.bias
        return W

    def soft_labels(self, opinions: Array) -> Array:
        """Return q."""
        return np.exp(log_softmax(self.logits(opinions)))


def fit_label_pool(opinions: Array, true: NDArray[np.int64], weights: Array | None = None) -> LabelPool:
    """Return trust and bias by Newton's method.

    Opinions (F, n, C), classes (n,) and weights (n,), None for equal ones, are those of clean samples.
    """
    count, n, classes = opinions.shape
    target, w = np.eye(classes)[true], np.ones((n, 1)) if weights is None else weights[:, None]
    values = np.concatenate([np.ones(count), np.zeros(classes)])
    prior = values.copy()

    def objective(values: Array) -> tuple[float, Array]:
        log_q = log_softmax(np.tensordot(values[:count], opinions, 1) + values[count:])
        return float(-(w * target * log_q).sum() + PRIOR_STRENGTH / 2 * ((values - prior) ** 2).sum()), np.exp(log_q)

    value, q = objective(values)
    for _ in range(MAX_NEWTON_STEPS):
        r, wq = w * (q - target), w * q
        gradient = np.concatenate([(opinions * r).sum((1, 2)), r.sum(0)]) + PRIOR_STRENGTH * (values - prior)
        if float(np.abs(gradient).max()) <= TOLERANCE * max(1, n):
            break
        centered = wq * (opinions - (q * opinions).sum(2, keepdims=True))
        H = np.zeros((count + classes, count + classes))
        H[:count, :count] = np.einsum("fnc,gnc->fg", centered, opinions)
        H[:count, count:] = centered.sum(1)
        H[count:, :count] = H[:count, count:].T
        H[count:, count:] = np.diag(wq.sum(0)) - wq.T @ q
        step = -np.linalg.solve(H + PRIOR_STRENGTH * np.eye(len(H)), gradient)
        length = 1.0
        while True:
            new_value, new_q = objective(values + length * step)
            if new_value <= value or length < 1e-6:
                break
            length /= 2
        values, value, q = values + length * step, new_value, new_q
    return LabelPool(values[:count], values[count:])
