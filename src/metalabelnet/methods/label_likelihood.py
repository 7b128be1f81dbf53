"""What the labels of a row say about its true class: its given label, or the labels of several annotators.

    ℓ(y)       log-likelihood of the labels of a row whose true class is y

    given label    ℓ(y) = log T(given | y), with the noise matrix T counted on the clean rows (`core/noise_counts.py`)
    annotations    ℓ(y) = Σ_a log T_a(label of a | y), with a noise matrix for every annotator, fitted with the
                   classifier as prior and the labels of the clean rows (`core/dawid_skene.py`)

The given label of a row with annotations is not used: it is one of them, or their majority vote. Where a row without
annotations has a given label, it counts as that of one more annotator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from metalabelnet.core.annotations import Annotations
from metalabelnet.core.dawid_skene import fit_dawid_skene
from metalabelnet.core.noise_counts import count_noise, log_likelihood, with_missing_column
from metalabelnet.core.transition_matrix import estimate_transitions
from metalabelnet.methods.logistic import given_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metalabelnet.methods.fixed_features import FixedFeatures

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]


def first_labels(f: FixedFeatures) -> list[tuple[Array, Array]]:
    """Return candidates for labels and weights of all rows before there is a classifier.

    They are the given labels; for annotations the shares of the votes, and q of Dawid and Skene, which is better unless
    annotators err in common.
    """
    if f.annotations is None:
        return [given_labels(f)]
    annotations = _with_given_labels(f.annotations, f.given)
    votes = annotations.votes(f.classes)
    total = votes.sum(1, keepdims=True)
    shares = np.where(total > 0, votes / np.maximum(total, 1), 1 / f.classes)
    weights = (total[:, 0] > 0).astype(np.float64)
    return [(shares, weights), (fit_dawid_skene(annotations, f.classes).posterior, weights)]


def label_log_likelihood(f: FixedFeatures, log_p: Array, use: Mask) -> Array:
    """Return ℓ of all rows, (n + m, C).

    log_p  (n + m, C) log-probabilities of a classifier
    use    which clean rows may be used with their true label
    """
    if f.annotations is None:
        return given_log_likelihood(f, log_p, use)
    annotations = _with_given_labels(f.annotations, f.given)
    true = np.concatenate([np.full(f.n, -1), np.where(use, f.true, -1)])
    return fit_dawid_skene(annotations, f.classes, log_prior=log_p, true=true).log_likelihood(annotations)


def given_log_likelihood(f: FixedFeatures, log_p: Array, use: Mask) -> Array:
    """Return ℓ of the given labels; 0 for clean rows where it is not known whether they had one."""
    return log_likelihood(_noise_matrix(f, log_p, use), f.given) * _has_opinion(f)[:, None]


def _with_given_labels(annotations: Annotations, given: NDArray[np.int64]) -> Annotations:
    """Return the annotations, with the given labels of rows that have none as those of one more annotator."""
    alone = given >= 0
    alone[annotations.sample] = False
    rows = np.flatnonzero(alone)
    return Annotations.from_entries(
        np.concatenate([annotations.sample, rows]),
        np.concatenate([annotations.annotator, np.full(len(rows), len(annotations.names))]),
        np.concatenate([annotations.label, given[rows]]),
        size=annotations.size,
        names=(*annotations.names, "given label"),
    )


def _has_opinion(f: FixedFeatures) -> Array:
    """Return 1 for rows whose given label, or its absence, is known; 0 for clean rows where it is not."""
    known = np.ones(len(f.given))
    if not (f.given[f.n :] >= 0).any() or (f.given[: f.n] >= 0).all():
        known[f.n :] = f.given[f.n :] >= 0
    return known


def _noise_matrix(f: FixedFeatures, log_p: Array, use: Mask) -> Array:
    """Return T, (C, C + 1), from the clean rows of the mask."""
    known = use & (_has_opinion(f)[f.n :] > 0)
    if known.any():
        T = count_noise(f.true[known], f.given[f.n :][known], f.classes)
        if (f.given[: f.n] >= 0).all():
            T[:, -1] = 1.0  # no training row lacks a label
        return T
    labeled = f.given[: f.n] >= 0
    p = torch.from_numpy(np.exp(log_p))
    estimated = estimate_transitions(
        p[f.n :][use], torch.from_numpy(f.true[use]), p[: f.n][labeled], torch.from_numpy(f.given[: f.n][labeled])
    )
    return with_missing_column(estimated.T.double().numpy())
