"""p_g of `metalabelnet-plus` on fixed features: a linear classifier of given labels that has not seen the row's own.

    dense features     logistic regression, fitted without the row's fold
    texts              softmax(a_l log p_l + a_n log p_n + c): p_l is this logistic regression, p_n naive Bayes without
                       the row; a and c minimize the cross-entropy of the given labels

Naive Bayes is better with few or very noisy labels, logistic regression with many: thousands of given labels decide.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from metalabelnet.core.label_pool import fit_label_pool
from metalabelnet.core.logistic import log_softmax
from metalabelnet.core.naive_bayes import fit_naive_bayes, leave_one_out_logits
from metalabelnet.methods.label_likelihood import first_labels
from metalabelnet.methods.logistic import cross_fit, select_decay

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from metalabelnet.methods.fixed_features import FixedFeatures

    Array = NDArray[np.float64]

SMOOTHINGS = (2.0, 1.0, 0.5, 0.25, 0.125, 0.06)  # s of naive Bayes; a row of TF-IDF has length 1


@dataclass(frozen=True, kw_only=True)
class GivenLabelClassifier:
    """A classifier of given labels.

    log_p         (n + m, C) log p_g of all rows
    start         (d + 1, C) coefficients of the logistic regression without the last fold
    coefficients  (d + 1, C) coefficients of the whole classifier, for other rows
    decay         λ
    smoothing     s; None: no naive Bayes
    labels        which of the `first_labels` were fitted
    """

    log_p: Array
    start: Array
    coefficients: Array
    decay: float
    smoothing: float | None
    labels: int


def fit_given_labels(
    f: FixedFeatures, chosen: GivenLabelClassifier | None = None
) -> Generator[None, None, GivenLabelClassifier]:
    """Return the fit to the labels of lowest cross-entropy on the clean rows, or to those of `chosen` with its λ and s.

    Yields after every logistic regression.
    """
    fits = []
    for number, (q, w) in enumerate(first_labels(f)):
        if chosen is not None and number != chosen.labels:
            continue
        decay = (yield from select_decay(f, q, w)) if chosen is None else chosen.decay
        out_of_fold, W = yield from cross_fit(f, q, w, decay, None if chosen is None else chosen.start)
        fit = GivenLabelClassifier(
            log_p=log_softmax(out_of_fold), start=W, coefficients=W, decay=decay, smoothing=None, labels=number
        )
        if f.suits_naive_bayes and (w > 0).any():
            smoothings = SMOOTHINGS if chosen is None or chosen.smoothing is None else (chosen.smoothing,)
            fit = _with_naive_bayes(f, q, w, fit, smoothings)
        fits.append(fit)
    clean = np.arange(f.n, len(f.given))
    return min(fits, key=lambda fit: -float(fit.log_p[clean, f.true].sum()))


def _with_naive_bayes(
    f: FixedFeatures, q: Array, w: Array, fit: GivenLabelClassifier, smoothings: tuple[float, ...]
) -> GivenLabelClassifier:
    """Return the pool of a logistic regression with the naive Bayes of the best smoothing."""
    labeled, label = w > 0, q.argmax(1)
    fits = []
    for smoothing in smoothings:
        both = np.stack([fit.log_p, log_softmax(leave_one_out_logits(f.X, q, w, smoothing))])
        pool = fit_label_pool(both[:, labeled], label[labeled])
        log_p = log_softmax(pool.logits(both))
        coefficients = pool.coefficients([fit.start, fit_naive_bayes(f.X, q, w, smoothing)])
        fits.append(dataclasses.replace(fit, log_p=log_p, coefficients=coefficients, smoothing=smoothing))
    return min(fits, key=lambda fit: -float(fit.log_p[labeled, label[labeled]].sum()))
