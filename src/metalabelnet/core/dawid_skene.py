"""The model of Dawid and Skene: a noise matrix for every annotator, found by EM, with clean samples and a prior.

    l_ia       label that annotator a gave sample i; abstaining is a label of its own, C. Annotators who were not asked
               have none
    y_i        true class of sample i, known for clean samples
    π_i(y)     prior of the true class: the probabilities of a classifier, or the frequencies of the classes
    T_a        noise matrix of annotator a: T_a(y, l) = P(l_ia = l | y_i = y)
    q_i(y)     posterior of the true class; clean samples have probability 1 for their class

    E          q_i(y) ∝ π_i(y) Π_a T_a(y, l_ia), computed as a sum of logarithms
    M          n_a(y, l) = Σ_i q_i(y) [l_ia = l]
               T(y, ·)   ∝ Σ_a n_a(y, ·) + 1/(C + 1), the pooled matrix
               T_a(y, ·) ∝ n_a(y, ·) + κ T(y, ·)
               π(y)      ∝ Σ_i q_i(y) without a classifier

An annotator with few labels has the pooled matrix, one with many has a matrix of his own: κ is the number of labels at
which both count the same. With κ = 0 and no clean samples this is the model of the paper. EM starts at the shares of
the votes. The time is linear in the number of annotations.

The likelihood of a sample's labels uses matrices without the sample's own contribution (leave-one-out), so that it can
be compared between clean samples, whose class entered the matrices, and others.

References
----------
.. [1] A. P. Dawid and A. M. Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm",
   Applied Statistics 1979, https://doi.org/10.2307/2346806
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metalabelnet.core.annotations import ABSTAINED
from metalabelnet.core.logistic import log_softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metalabelnet.core.annotations import Annotations

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]

SHRINKAGE = 10.0  # κ
TOLERANCE = 1e-5  # largest change of a posterior probability at convergence
MAX_ITERATIONS = 200
MIN_PROBABILITY = 1e-10  # of a label, where nothing is added to the counts


class DawidSkene(NamedTuple):
    """The model of some annotations.

    Attributes
    ----------
    posterior : ndarray
        (N, C) q, the probability of each class.
    matrices : ndarray
        (annotators, C, C + 1) noise matrices T_a; the last column is abstaining.
    pooled : ndarray
        (C, C + 1) the pooled matrix T.
    counts : ndarray
        (annotators, C, C + 1) n_a.
    shrinkage : float
        κ.
    """

    posterior: Array
    matrices: Array
    pooled: Array
    counts: Array
    shrinkage: float

    def log_likelihood(self, annotations: Annotations) -> Array:
        """Return Σ_a log T_a(y, l_ia) for every sample and class, by matrices without the sample itself.

        Parameters
        ----------
        annotations : Annotations
            The annotations that the model was fitted to.

        Returns
        -------
        ndarray
            (N, C).
        """
        label = _columns(annotations, self.pooled.shape[0])
        own = self.posterior[annotations.sample]
        n = self.counts[annotations.annotator, :, label] - own
        total = self.counts.sum(2)[annotations.annotator] - own
        prior = self.shrinkage * self.pooled[:, label].T
        likelihood = (n.clip(0) + prior) / np.maximum(total.clip(0) + self.shrinkage, MIN_PROBABILITY)
        return _sum_by_sample(annotations, np.log(np.maximum(likelihood, MIN_PROBABILITY)))


def fit_dawid_skene(
    annotations: Annotations,
    classes: int,
    *,
    log_prior: Array | None = None,
    true: Labels | None = None,
    shrinkage: float = SHRINKAGE,
) -> DawidSkene:
    """Return the model of the annotations.

    Parameters
    ----------
    annotations : Annotations
        The labels l_ia.
    classes : int
        The number of classes C.
    log_prior : ndarray, optional
        (N, C) logarithms of a classifier's probabilities. Default: the frequencies of the classes are estimated.
    true : ndarray, optional
        (N,) classes of the clean samples; −1: unknown. Default: there are no clean samples.
    shrinkage : float, default 10
        κ; 0 turns shrinkage off.

    Returns
    -------
    DawidSkene
        The posterior and the noise matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from metalabelnet.core.annotations import Annotations
    >>> from metalabelnet.core.dawid_skene import fit_dawid_skene
    >>> table = np.array([[0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 1, 0]])
    >>> model = fit_dawid_skene(Annotations.from_array(table, ("ann", "ben", "eve")), 2, shrinkage=0)
    >>> model.posterior.argmax(1).tolist()
    [0, 1, 0, 1, 0, 1]
    >>> model.matrices[2, :, :2].round(2).tolist()  # eve is wrong twice as often as right
    [[0.33, 0.67], [0.67, 0.33]]
    """
    is_clean = np.zeros(annotations.size, bool) if true is None else true >= 0
    known = np.eye(classes)[np.zeros(annotations.size, np.int64) if true is None else np.maximum(true, 0)]
    label = _columns(annotations, classes)
    votes = annotations.votes(classes) + MIN_PROBABILITY
    q = np.where(is_clean[:, None], known, votes / votes.sum(1, keepdims=True))
    for _ in range(MAX_ITERATIONS):
        counts = _count(annotations, label, q)
        pooled = counts.sum(0) + 1 / (classes + 1)
        pooled /= pooled.sum(1, keepdims=True)
        matrices = counts + shrinkage * pooled
        matrices /= np.maximum(matrices.sum(2, keepdims=True), MIN_PROBABILITY)
        log_T = np.log(np.maximum(matrices, MIN_PROBABILITY))
        prior = np.log(np.maximum(q.mean(0), MIN_PROBABILITY)) if log_prior is None else log_prior
        z = prior + _sum_by_sample(annotations, log_T[annotations.annotator, :, label])
        previous, q = q, np.where(is_clean[:, None], known, np.exp(log_softmax(z)))
        if float(np.abs(q - previous).max(initial=0)) <= TOLERANCE:
            break
    return DawidSkene(q, matrices, pooled, counts, shrinkage)


def _columns(annotations: Annotations, classes: int) -> Labels:
    """Return the column of T of each annotation."""
    return np.where(annotations.label == ABSTAINED, classes, annotations.label)


def _count(annotations: Annotations, label: Labels, q: Array) -> Array:
    """Return n_a(y, l), (annotators, C, C + 1)."""
    annotators, classes = len(annotations.names), q.shape[1]
    cell = annotations.annotator * (classes + 1) + label
    by_class = [np.bincount(cell, q[annotations.sample, y], annotators * (classes + 1)) for y in range(classes)]
    counts = np.stack(by_class, 1).astype(np.float64, copy=False)
    return counts.reshape(annotators, classes + 1, classes).transpose(0, 2, 1)


def _sum_by_sample(annotations: Annotations, values: Array) -> Array:
    """Return the sums of values (A, C) over the annotations of each sample, (N, C)."""
    by_class = [np.bincount(annotations.sample, column, annotations.size) for column in values.T]
    return np.stack(by_class, 1).astype(np.float64, copy=False)
