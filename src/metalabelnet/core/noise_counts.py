"""The noise matrix counted on clean samples that carry a given label, with a column for "no label", and its log.

    n_ij      clean samples of class i with given label j; j = C: no given label
    r_ij      the matrix of one noise rate and one rate of missing labels, both over all classes
    T_ij      (n_ij + κ r_ij) / Σ_j (n_ij + κ r_ij), with κ = 2C

Few clean samples of a class are weak evidence of its noise: each row is shrunk towards the mean over the classes.
Whether a label is missing may depend on the class: labeling rules abstain more often on some classes than on others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]

PSEUDO_SAMPLES_PER_CLASS = 2.0  # κ = 2C for each row of T
UNIFORM_SHARE = 0.02  # of r: no label is impossible


def count_noise(true: Labels, given: Labels, classes: int) -> Array:
    """Return T, (C, C + 1), from true and given labels of clean samples; −1: no given label."""
    counts = np.zeros((classes, classes + 1))
    np.add.at(counts, (true, np.where(given < 0, classes, given)), 1)
    n = max(1.0, float(counts.sum()))
    right, missing = float(np.trace(counts)) / n, float(counts[:, classes].sum()) / n
    rates = np.full((classes, classes + 1), max(0.0, 1 - right - missing) / max(1, classes - 1))
    np.fill_diagonal(rates, right)
    rates[:, classes] = missing
    rates = (1 - UNIFORM_SHARE) * rates + UNIFORM_SHARE / (classes + 1)
    counts += PSEUDO_SAMPLES_PER_CLASS * classes * rates
    T: Array = counts / counts.sum(1, keepdims=True)
    return T


def with_missing_column(T: Array) -> Array:
    """Return a square T, (C, C), as (C, C + 1) where a missing label is no evidence of the class."""
    classes = len(T)
    T = (1 - UNIFORM_SHARE) * T + UNIFORM_SHARE / classes
    return np.concatenate([T, np.ones((classes, 1))], 1)


def log_likelihood(T: Array, given: Labels) -> Array:
    """Return log T(given label | class) of each sample and class, (n, C)."""
    likelihood: Array = np.log(T)[:, np.where(given < 0, T.shape[1] - 1, given)].T
    return likelihood
