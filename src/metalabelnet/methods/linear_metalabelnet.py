"""`metalabelnet-plus` on fixed features (tables, texts, embeddings): a linear classifier with learned soft labels.

    n, m             training rows with given labels, clean rows
    p_g, p_c         logistic regression on given labels, on clean labels
    ℓ(y)             log-likelihood of a row's labels for class y: log T(given | y) with the noise matrix T, or that of
                     the labels of several annotators (`methods/label_likelihood.py`)
    q(y)             ∝ exp(a_g log p_g(y) + a_c log p_c(y) + b ℓ(y) + c_y), the label pool
    W*(q, ω, λ)      logistic regression on the soft labels q of the training rows and the clean labels with weight ω

    1. p_g for every row, by a model fitted without the row's fold. With several annotators it is fitted to the shares
       of the votes or to Dawid and Skene's posterior, whichever gives the lower cross-entropy on the clean rows
    2. for each fold k of the clean rows: p_c, ℓ, the pool and so q, from the other clean rows. p_g is the prior of the
       annotator model
    3. W_k*, fitted without fold k. The meta-objective is the cross-entropy L of the W_k* on the clean rows of fold k.
       Gradient descent on L changes λ, ω and the trust (a_g, a_c, b); the gradient goes through the solutions W_k* by
       implicit differentiation (`core/logistic.py`). A step is taken where the gradient predicts a gain of more than
       one nat for each value, and kept if L decreases by more than a standard error: few clean rows cannot decide it
    4. p_s for every row, by the W_k*. A second pool of p_s and ℓ gives the final q and the corrected labels; p_s is now
       the prior of the annotator model
    5. W*, fitted to all rows with the final q. Its logits are scaled and shifted by class (Platt scaling), fitted on
       the p_s of the clean rows: λ shrinks the logits but not the bias, which favors the more frequent class

With more than 5,000 training rows, steps 1 to 3 use 5,000 of them, which decide λ, ω and the trust. p_g, p_c, ℓ and the
pools are then found again with two folds, on all rows, or on 100,000 of them if there are more: p_s of the others comes
from the mean of the two W_k*. Step 5 uses all rows: that is one fit to all rows, and four to at most 100,000.

If clean rows carry no given label, T is estimated from p_g, and its trust stays at its prior, 1. If the corrected
labels of the clean rows (by pools fitted without them) are right less often than the given ones, the label table keeps
the given labels (`labels/given_check.py`); suspicion still comes from the final q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from metalabelnet.core.calibration import fit_temperature
from metalabelnet.core.label_pool import LabelPool, fit_label_pool
from metalabelnet.core.logistic import TOLERANCE, differentiate_solution, fit_logistic, log_softmax, logits
from metalabelnet.methods.label_likelihood import first_labels, label_log_likelihood
from metalabelnet.methods.logistic import (
    CROSS_FIT_TOLERANCE,
    FittedLabels,
    LogisticMethod,
    cross_fit,
    select_decay,
)
from metalabelnet.methods.method import MethodTraits

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from metalabelnet.methods.fixed_features import FixedFeatures

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

CLEAN_WEIGHT = 3.0  # ω before the meta-objective changes it
# λ for soft labels relative to the mean squared length of a row, before the meta-objective changes it. For texts and
# two classes it is C = 10 of scikit-learn. Given labels, which are noisier, have a λ of their own.
SOFT_LABEL_DECAY = 0.2
SELECTION_ROWS = 5_000  # training rows that decide λ, ω and trust
STUDENT_ROWS, STUDENT_FOLDS = 100_000, 2  # of the W_k*, where there are more training rows than decide
META_STEPS = 2
META_RATE = 0.3  # of gradient descent on L, a sum over clean rows
MAX_META_STEP = 0.7  # of log λ, log ω and trust
TRUST_PRECISION, LOG_PRECISION = 4.0, 1.0  # of the Gaussian priors on the change of trust, and of log λ and log ω


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """Opinions about the training rows, and the pool fitted on the clean rows that they are based on."""

    opinions: Array  # (3, n, C)
    pool: LabelPool

    def soft_labels(self, trust_change: Array) -> Array:
        """Return q with changed trust."""
        return LabelPool(self.pool.trust + trust_change, self.pool.bias).soft_labels(self.opinions)


class LinearMetaLabelNet(LogisticMethod):
    """Linear classifier on soft labels from a pool of opinions, whose trust a meta-objective on clean rows learns."""

    traits = MethodTraits(
        summary="soft labels from given labels, noise matrix and clean samples, on fixed features",
        reference="–",
        uses_unlabeled=True,
        needs_clean=True,
    )

    def fit(self) -> Generator[None, None, None]:
        """Run steps 1 to 5 of the module's description."""
        f = self.features()
        n, X, rows = f.n, f.X, np.arange(len(f.given))
        part = f if n <= SELECTION_ROWS else f.subset(SELECTION_ROWS, f.folds)[0]
        first = yield from _fit_first_labels(part)
        sources = yield from self._label_sources(part, first)
        decay = SOFT_LABEL_DECAY * f.mean_square
        found = yield from _meta_learn(part, sources, decay, first.W)
        values, solutions = found.values, found.solutions
        clean_weight, decay = CLEAN_WEIGHT * np.exp(values[3]), decay * np.exp(values[4])
        if part is not f:
            part, rows = f.subset(STUDENT_ROWS, STUDENT_FOLDS)
            first = yield from _fit_first_labels(part, first)
            sources = yield from self._label_sources(part, first)
            start, solutions = np.mean(solutions, 0), []
            for k, source in enumerate(sources):
                q, w = _with_clean_rows(part, source.soft_labels(values[:3]), clean_weight)
                W = fit_logistic(part.X, q, w * (part.fold != k), decay, start=start, tolerance=CROSS_FIT_TOLERANCE)
                yield
                solutions.append(W)
        log_p_given = _predict_others(f, rows, first.log_p, first.W)
        log_p = _predict_others(f, rows, log_softmax(_out_of_fold_logits(part, solutions)), np.mean(solutions, 0))
        all_clean = np.ones(len(f.true), bool)
        # The noise matrix of given labels is estimated by a classifier that was fitted to given labels.
        prior = log_p_given if f.annotations is None else log_p
        opinions = np.stack([log_p, label_log_likelihood(f, prior, all_clean)])
        log_q = log_softmax(fit_label_pool(opinions[:, n:], f.true).logits(opinions[:, :n]))
        soft_labels = np.exp(log_q)
        q, w = _with_clean_rows(f, soft_labels, clean_weight)
        # The gradient of many rows is uncertain by more than the tolerance: 1/√n of its size.
        tolerance = TOLERANCE if n <= SELECTION_ROWS else CROSS_FIT_TOLERANCE
        W = fit_logistic(X, q, w, decay, start=solutions[-1], tolerance=tolerance)
        yield
        self.set_coefficients(f, _calibrate_coefficients(W, fit_label_pool(log_p[None, n:], f.true)))
        self.result = FittedLabels(
            clean_logits=_cross_calibrate(f, log_p[n:]),
            log_p=log_q,
            calibrated=True,
            soft_labels=soft_labels,
            suspicion=1 - soft_labels[np.arange(n), np.maximum(f.given[:n], 0)],
            clean_labels=_correct_clean_labels(f, opinions),
        )

    def _label_sources(self, f: FixedFeatures, first: FirstFit) -> Generator[None, None, list[LabelSource]]:
        """Return a label source for each fold, from the clean rows of the other folds."""
        sources: list[LabelSource] = []
        for k in range(f.folds):
            source = yield from self._label_source(f, first.log_p, f.fold[f.n :] != k, first.decay)
            sources += [source]
        return sources

    def _label_source(
        self, f: FixedFeatures, log_p_given: Array, use: Mask, decay: float
    ) -> Generator[None, None, LabelSource]:
        """Return opinions and pool from the clean rows of the mask alone."""
        n, rows = f.n, np.flatnonzero(use)
        X, true, fold = f.X[n + rows], f.true[rows], f.fold[n + rows]
        q = np.eye(f.classes)[true]
        W = fit_logistic(X, q, np.ones(len(rows)), decay, tolerance=CROSS_FIT_TOLERANCE)
        yield
        clean_logits = np.zeros_like(q)
        for k in np.unique(fold):
            held_out = fold == k
            W_k = fit_logistic(X, q, (~held_out).astype(float), decay, start=W, tolerance=CROSS_FIT_TOLERANCE)
            clean_logits[held_out] = logits(X[held_out], W_k)
        yield
        noise = label_log_likelihood(f, log_p_given, use)
        clean_opinions = np.stack([log_p_given[n + rows], log_softmax(clean_logits), noise[n + rows]])
        opinions = np.stack([log_p_given[:n], log_softmax(logits(f.X[:n], W)), noise[:n]])
        return LabelSource(opinions=opinions, pool=fit_label_pool(clean_opinions, true))


@dataclass(frozen=True, kw_only=True)
class FirstFit:
    """Step 1: log p_g of all rows, λ, coefficients of the last fold, and the number of the labels that were fitted."""

    log_p: Array
    decay: float
    W: Array
    labels: int


def _fit_first_labels(f: FixedFeatures, chosen: FirstFit | None = None) -> Generator[None, None, FirstFit]:
    """Return the fit to the labels of lowest cross-entropy on the clean rows; or to those of `chosen`, with its λ."""
    fits = []
    for number, (q, w) in enumerate(first_labels(f)):
        if chosen is not None and number != chosen.labels:
            continue
        decay = (yield from select_decay(f, q, w)) if chosen is None else chosen.decay
        out_of_fold, W = yield from cross_fit(f, q, w, decay, None if chosen is None else chosen.W)
        fits.append(FirstFit(log_p=log_softmax(out_of_fold), decay=decay, W=W, labels=number))
    clean = np.arange(f.n, len(f.given))
    return min(fits, key=lambda fit: -float(fit.log_p[clean, f.true].sum()))


def _out_of_fold_logits(f: FixedFeatures, solutions: list[Array]) -> Array:
    """Return the logits of every row by the solution that was fitted without its fold."""
    z = np.zeros((len(f.given), f.classes))
    for k, W in enumerate(solutions):
        z[f.fold == k] = logits(f.X[f.fold == k], W)
    return z


def _predict_others(f: FixedFeatures, rows: NDArray[np.int64], log_p: Array, W: Array) -> Array:
    """Return log-probabilities of all rows: `log_p` of the given rows, those by W of the others."""
    if len(rows) == len(f.given):
        return log_p
    everything = log_softmax(logits(f.X, W))
    everything[rows] = log_p
    return everything


@dataclass(frozen=True, kw_only=True)
class MetaPoint:
    """The meta-objective at some values of what it learns.

    values     change of trust (3), then those of log ω and log λ
    total      L plus the priors of the values
    losses     (m,) cross-entropy of each clean row
    gradient   of the total by the values
    solutions  the W_k*
    """

    values: Array
    total: float
    losses: Array
    gradient: Array
    solutions: list[Array]


def _meta_learn(
    f: FixedFeatures, sources: list[LabelSource], decay: float, start: Array
) -> Generator[None, None, MetaPoint]:
    """Minimize the meta-objective by a few steps of gradient descent; return the start unless the end is better."""
    first = yield from _meta_objective(f, sources, np.zeros(5), decay, [start] * f.folds)
    best, rate = first, META_RATE
    for _ in range(META_STEPS):
        if rate * float((best.gradient**2).sum()) / 2 < len(best.values):
            break
        values = best.values - np.clip(rate * best.gradient, -MAX_META_STEP, MAX_META_STEP)
        point = yield from _meta_objective(f, sources, values, decay, best.solutions)
        if point.total < best.total:
            best = point
        else:
            rate /= 4
    gain = first.losses - best.losses
    return best if gain.mean() > gain.std() / np.sqrt(len(gain)) else first


def _meta_objective(
    f: FixedFeatures, sources: list[LabelSource], values: Array, decay: float, starts: list[Array]
) -> Generator[None, None, MetaPoint]:
    """Fit the W_k*, evaluate them on their clean folds, and differentiate through them.

    The logits are divided by the temperature that minimizes the objective. Its derivative is 0 there, so that it does
    not enter the gradient.
    """
    n, X, clean_fold = f.n, f.X, f.fold[f.n :]
    trust_change, clean_weight, decay = values[:3], CLEAN_WEIGHT * np.exp(values[3]), decay * np.exp(values[4])
    solutions, held_out_logits = [], np.zeros((len(f.true), f.classes))
    fits = []
    for k, (source, start) in enumerate(zip(sources, starts, strict=True)):
        q, w = _with_clean_rows(f, source.soft_labels(trust_change), clean_weight)
        w = w * (f.fold != k)
        W = fit_logistic(X, q, w, decay, start=start, tolerance=CROSS_FIT_TOLERANCE)
        yield
        solutions.append(W)
        fits.append((q, w))
        held_out_logits[clean_fold == k] = logits(X[n:][clean_fold == k], W)
    t, _ = fit_temperature(torch.from_numpy(held_out_logits), torch.from_numpy(f.true))
    log_p = log_softmax(held_out_logits / t)
    losses = -log_p[np.arange(len(f.true)), f.true]
    # The pseudo-sample with a uniform label that `fit_temperature` adds is part of the objective: see its docstring.
    target = np.eye(f.classes)[f.true] + 1 / (len(f.true) * f.classes)
    residual = (target.sum(1, keepdims=True) * np.exp(log_p) - target) / t
    gradient = np.zeros_like(values)
    for k, (source, W, (q, w)) in enumerate(zip(sources, solutions, fits, strict=True)):
        rows = np.flatnonzero(clean_fold == k)
        r = residual[rows]
        g = np.concatenate([X[n + rows].T @ r, r.sum(0, keepdims=True)])
        by = differentiate_solution(X, W, q, w, decay, g, tolerance=CROSS_FIT_TOLERANCE)
        yield
        by_logits = q[:n] * (by.labels[:n] - (q[:n] * by.labels[:n]).sum(1, keepdims=True))
        gradient[:3] += np.einsum("fnc,nc->f", source.opinions, by_logits)
        gradient[3] += float((w[n:] * by.weights[n:]).sum())
        gradient[4] += by.log_decay
    precision = np.array([TRUST_PRECISION] * 3 + [LOG_PRECISION] * 2)
    return MetaPoint(
        values=values,
        total=float(losses.sum() - log_p.mean() + (precision * values**2).sum() / 2),
        losses=losses,
        gradient=gradient + precision * values,
        solutions=solutions,
    )


def _with_clean_rows(f: FixedFeatures, soft_labels: Array, clean_weight: float) -> tuple[Array, Array]:
    """Return labels and weights of all rows: soft labels of the training rows, labels of the clean rows."""
    q = np.concatenate([soft_labels, np.eye(f.classes)[f.true]])
    return q, np.concatenate([np.ones(f.n), np.full(len(f.true), clean_weight)])


def _calibrate_coefficients(W: Array, pool: LabelPool) -> Array:
    """Return coefficients whose logits are those of W times the pool's trust plus its bias."""
    W = pool.trust[0] * W
    W[-1] += pool.bias
    return W


def _cross_calibrate(f: FixedFeatures, log_p: Array) -> Array:
    """Return calibrated logits of the clean rows, each by a calibration that was fitted without its fold."""
    calibrated, fold = np.zeros_like(log_p), f.fold[f.n :]
    for k in range(f.folds):
        rows = fold == k
        calibrated[rows] = fit_label_pool(log_p[None, ~rows], f.true[~rows]).logits(log_p[None, rows])
    return calibrated


def _correct_clean_labels(f: FixedFeatures, opinions: Array) -> NDArray[np.int64]:
    """Return the corrected labels of the clean rows, each by a pool that was fitted without its fold."""
    n, fold, corrected = f.n, f.fold[f.n :], np.zeros(len(f.true), np.int64)
    for k in range(f.folds):
        rows = fold == k
        pool = fit_label_pool(opinions[:, n:][:, ~rows], f.true[~rows])
        corrected[rows] = pool.logits(opinions[:, n:][:, rows]).argmax(1)
    return corrected
