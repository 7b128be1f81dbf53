"""p_g of `metalabelnet-plus` on fixed features: a linear classifier of given labels that has not seen the row's own.

    p_g     softmax(a_l log p_l + a_n log p_n + c); a and c minimize the cross-entropy of the given labels
    p_l     logistic regression without the row's fold
    p_n     a generative classifier without the row, or without its fold (`methods/generative.py`): naive Bayes on
            texts, linear discriminant analysis on dense features. Without one, p_g is p_l

A generative classifier is better with few or very noisy labels, logistic regression with many: thousands of given
labels decide.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from metalabelnet.core.label_pool import fit_label_pool
from metalabelnet.core.logistic import log_softmax
from metalabelnet.methods.generative import generative_model
from metalabelnet.methods.label_likelihood import first_labels
from metalabelnet.methods.logistic import cross_fit, select_decay

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from metalabelnet.methods.fixed_features import FixedFeatures
    from metalabelnet.methods.generative import GenerativeModel

    Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GivenLabelClassifier:
    """A classifier of given labels.

    log_p         (n + m, C) log p_g of all rows
    start         (d + 1, C) coefficients of the logistic regression: the mean of those without a fold
    coefficients  (d + 1, C) coefficients of the whole classifier, for other rows
    decay         λ
    smoothing     s of the generative classifier; None: there is none
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
        if (model := generative_model(f)) is not None and (w > 0).any():
            smoothings = model.candidates if chosen is None or chosen.smoothing is None else (chosen.smoothing,)
            fit = _with_generative(f, q, w, fit, model, smoothings)
        fits.append(fit)
    clean = np.arange(f.n, len(f.given))
    return min(fits, key=lambda fit: -float(fit.log_p[clean, f.true].sum()))


def _with_generative(
    f: FixedFeatures,
    q: Array,
    w: Array,
    fit: GivenLabelClassifier,
    model: GenerativeModel,
    smoothings: tuple[float, ...],
) -> GivenLabelClassifier:
    """Return the pool of a logistic regression with the generative classifier of the best s."""
    labeled, label = w > 0, q.argmax(1)
    fits = []
    for smoothing, z in zip(smoothings, model.held_out_logits(f, q, w, smoothings), strict=True):
        both = np.stack([fit.log_p, log_softmax(z)])
        pool = fit_label_pool(both[:, labeled], label[labeled])
        log_p = log_softmax(pool.logits(both))
        fits.append((-float(log_p[labeled, label[labeled]].sum()), smoothing, pool, log_p))
    _, smoothing, pool, log_p = min(fits, key=lambda candidate: candidate[0])
    coefficients = pool.coefficients([fit.start, model.fit(f.X, q, w, smoothing)])
    return dataclasses.replace(fit, log_p=log_p, coefficients=coefficients, smoothing=smoothing)
