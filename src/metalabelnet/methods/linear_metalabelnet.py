"""`metalabelnet-plus` on fixed features (tables, texts, embeddings): a linear classifier with learned soft labels.

    n, m             training rows with given labels, clean rows
    p_g              classifier of the given labels: logistic regression together with naive Bayes on texts, and with
                     linear discriminant analysis on dense features (`methods/given_label_classifier.py`)
    p_c              logistic regression on the clean labels
    ℓ(y)             log-likelihood of a row's labels for class y: log T(given | y) with the noise matrix T, or that of
                     the labels of several annotators (`methods/label_likelihood.py`)
    q(y)             ∝ exp(a_g log p_g(y) + a_c log p_c(y) + b ℓ(y) + c_y), the label pool
    W*(q, ω, λ)      logistic regression on the soft labels q of the training rows and the clean labels with weight ω

    1. p_g for every row, by a model that has not seen the row's label. With several annotators it is fitted to the
       shares of the votes or to Dawid and Skene's posterior, whichever gives the lower cross-entropy on the clean rows
    2. for each fold k of the clean rows: p_c, ℓ, the pool and so q, from the other clean rows. p_g is the prior of the
       annotator model. λ of p_c is the one with which the pool predicts clean rows of held-out folds best
    3. W_k*, fitted without fold k. λ is the one with which W_0* predicts the soft labels of fold 0 best. The
       meta-objective is the cross-entropy L of the W_k* on the clean rows of fold k. On dense features a small λ is
       used only if L is lower with it, too, by more than a standard error. Gradient descent on L changes λ, ω and the
       trust (a_g, a_c, b); the gradient goes through the solutions W_k* by implicit differentiation
       (`core/logistic.py`). A step is taken where the gradient predicts a gain of more than one nat for each value, and
       kept if L decreases by more than a standard error: few clean rows cannot decide it
    4. p_s for every row, by the W_k*; on texts p_n, too, by naive Bayes fitted to the same labels and folds. A second
       pool, of p_s, p_g and ℓ, and p_n, gives the final q and the corrected labels. The prior of the annotator model
       is now the classifier of step 5
    5. W*, fitted to all rows with the final q; on texts naive Bayes, too. The classifier is their pool, a linear one:
       its trust and bias are fitted on p_s and p_n of the clean rows. With p_s alone this is Platt scaling: λ shrinks
       the logits but not the bias, which favors the more frequent class

With more than 5,000 training rows, 5,000 of them decide each λ. Steps 1 to 4 then use three folds and one step of
gradient descent, on all rows, or on 100,000 of them if there are more: p_s of the others comes from the mean of the
W_k*. Step 5 uses all rows.

Clean rows that were drawn by class have weights in the pools (`core/label_shift.py`), so that the class bias is that of
the training rows. If clean rows carry no given label, T is estimated from p_g, and its trust stays at its prior, 1. If
the corrected labels of the clean rows (by pools fitted without them) are right less often than the given ones, the
label table keeps the given labels (`labels/given_check.py`); suspicion still comes from the final q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from metalabelnet.core.calibration import fit_temperature
from metalabelnet.core.label_pool import LabelPool, fit_label_pool
from metalabelnet.core.logistic import TOLERANCE, differentiate_solution, fit_logistic, log_softmax, logits
from metalabelnet.core.naive_bayes import fit_naive_bayes
from metalabelnet.methods.given_label_classifier import GivenLabelClassifier, fit_given_labels
from metalabelnet.methods.label_likelihood import label_log_likelihood
from metalabelnet.methods.logistic import (
    CROSS_FIT_TOLERANCE,
    RELATIVE_DECAYS,
    FittedLabels,
    LogisticMethod,
)
from metalabelnet.methods.method import MethodTraits

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from metalabelnet.methods.fixed_features import FixedFeatures

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

CLEAN_WEIGHT = 3.0  # ω before the meta-objective changes it
# Candidates for the λ of soft labels, relative to the mean squared length of a row, before the meta-objective changes
# it. For texts and two classes 0.2 is C = 10 of scikit-learn. Given labels, which are noisier, have a λ of their own.
SOFT_LABEL_DECAYS = (2.0, 0.6, 0.2)
# More candidates for at most SELECTION_ROWS rows that do not suit naive Bayes: with few columns and many classes 0.2 is
# too much. Soft labels alone cannot choose them: linear classifiers made these labels, and little decay imitates these.
SMALL_DECAYS = (0.06, 0.02)
SELECTION_ROWS = 5_000  # training rows that decide the λ of p_g and of the W_k*
STUDENT_ROWS = 100_000  # training rows of p_g and the W_k*
FEW_FOLDS = 3  # where there are more than SELECTION_ROWS. Two would leave no clean rows to judge p_c
META_STEPS = 2
META_RATE = 0.3  # of gradient descent on L, a sum over clean rows
MAX_META_STEP = 0.7  # of log λ, log ω and trust
PRIOR_PRECISION = np.array([4.0, 4.0, 4.0, 1.0, 1.0])  # of the Gaussian priors on the changes of trust, log ω and log λ


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """Opinions about the training rows, and the pool fitted on the clean rows that they are based on."""

    opinions: Array  # (3, n, C): log p_g, log p_c, ℓ
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
        part, chosen = f, None
        if n > SELECTION_ROWS:
            chosen = yield from fit_given_labels(f.subset(SELECTION_ROWS, FEW_FOLDS)[0])
            part, rows = f.subset(STUDENT_ROWS, FEW_FOLDS)
        first = yield from fit_given_labels(part, chosen)
        sources = yield from self._label_sources(part, first)
        decays = yield from _select_student_decays(part, sources[0])
        found = yield from _meta_learn(part, sources, decays, first.start, META_STEPS if n <= SELECTION_ROWS else 1)
        values, solutions = found.values, found.solutions
        clean_weight, decay = CLEAN_WEIGHT * np.exp(values[3]), found.decay * np.exp(values[4])
        log_p_given = _predict_others(f, rows, first.log_p, first.coefficients)
        # Rows that are not in `part` may be negative: they decide, too, whether naive Bayes is used.
        smoothing = first.smoothing if f.suits_naive_bayes else None
        students = [solutions]
        if smoothing is not None:
            students.append(_fit_naive_bayes_students(part, sources, values, smoothing))
        log_p = np.stack(
            [_predict_others(f, rows, log_softmax(_out_of_fold_logits(part, W)), np.mean(W, 0)) for W in students]
        )
        final_pool = fit_label_pool(log_p[:, n:], f.true, f.clean_weights)
        all_clean = np.ones(len(f.true), bool)
        # The noise matrix of given labels is estimated by a classifier that was fitted to given labels.
        prior = log_p_given if f.annotations is None else log_softmax(final_pool.logits(log_p))
        likelihood = label_log_likelihood(f, prior, all_clean)
        opinions = np.stack([*log_p, log_p_given, likelihood])
        label_pool = fit_label_pool(opinions[:, n:], f.true, f.clean_weights)
        log_q = log_softmax(label_pool.logits(opinions[:, :n]))
        soft_labels = np.exp(log_q)
        q, w = _with_clean_rows(f, soft_labels, clean_weight)
        # The gradient of many rows is uncertain by more than the tolerance: 1/√n of its size.
        tolerance = TOLERANCE if n <= SELECTION_ROWS else CROSS_FIT_TOLERANCE
        W = fit_logistic(X, q, w, decay, start=solutions[-1], tolerance=tolerance)
        yield
        final = [W] if smoothing is None else [W, fit_naive_bayes(X, q, w, smoothing)]
        self.set_coefficients(f, final_pool.coefficients(final))
        self.result = FittedLabels(
            clean_logits=_cross_pool(f, log_p[:, n:]),  # calibrated
            log_p=log_q,
            calibrated=True,
            soft_labels=soft_labels,
            suspicion=1 - soft_labels[np.arange(n), np.maximum(f.given[:n], 0)],
            clean_labels=_cross_pool(f, opinions[:, n:]).argmax(1),
        )

    def _label_sources(self, f: FixedFeatures, first: GivenLabelClassifier) -> Generator[None, None, list[LabelSource]]:
        """Return a label source for each fold, from the clean rows of the other folds."""
        sources: list[LabelSource] = []
        decay = yield from _select_clean_decay(f, first)
        for k in range(f.folds):
            source = yield from self._label_source(f, first.log_p, f.fold[f.n :] != k, decay)
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
        return LabelSource(opinions=opinions, pool=fit_label_pool(clean_opinions, true, f.clean_weights[use]))


def _select_clean_decay(f: FixedFeatures, first: GivenLabelClassifier) -> Generator[None, None, float]:
    """Return the λ of p_c with which the pool has the lowest cross-entropy on clean rows of held-out folds."""
    X, fold, q, clean = f.X[f.n :], f.fold[f.n :], np.eye(f.classes)[f.true], np.arange(len(f.true))
    likelihood = label_log_likelihood(f, first.log_p, np.ones(len(clean), bool))[f.n :]
    best, solutions = (np.inf, 0.0), [np.zeros((X.shape[1] + 1, f.classes))] * f.folds
    for relative in RELATIVE_DECAYS:
        decay, clean_logits = relative * f.mean_square, np.zeros_like(q)
        for k, start in enumerate(solutions):
            use = (fold != k).astype(float)
            solutions[k] = fit_logistic(X, q, use, decay, start=start, tolerance=CROSS_FIT_TOLERANCE)
            clean_logits[fold == k] = logits(X[fold == k], solutions[k])
        yield
        opinions = np.stack([first.log_p[f.n :], log_softmax(clean_logits), likelihood])
        loss = -float(log_softmax(_cross_pool(f, opinions))[clean, f.true].sum())
        best = min(best, (loss, decay))
    return best[1]


def _select_student_decays(f: FixedFeatures, source: LabelSource) -> Generator[None, None, list[float]]:
    """Return the λ with which W_0* predicts the soft labels of its held-out fold best (cross-entropy).

    If it is one of the `SMALL_DECAYS`, the best of the others comes first.
    """
    rows = np.sort(np.argsort(f.rank)[:: -(-len(f.given) // SELECTION_ROWS)])
    q, w = (values[rows] for values in _student_labels(f, source, np.zeros(5), 0))
    X, held_out = f.X[rows], (f.fold[rows] == 0) & (rows < f.n)
    W, found = np.zeros((X.shape[1] + 1, f.classes)), []
    small = () if f.suits_naive_bayes or f.n > SELECTION_ROWS else SMALL_DECAYS
    for relative in SOFT_LABEL_DECAYS + small:
        decay = relative * f.mean_square
        W = fit_logistic(X, q, w, decay, start=W, tolerance=CROSS_FIT_TOLERANCE)
        yield
        found.append((-float((q[held_out] * log_softmax(logits(X[held_out], W))).sum()), decay))
    moderate, best = min(found[: len(SOFT_LABEL_DECAYS)])[1], min(found)[1]
    return [moderate] if best == moderate else [moderate, best]


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

    decay      λ before its change
    values     change of trust (3), then those of log ω and log λ
    total      L plus the priors of the values
    losses     (m,) cross-entropy of each clean row
    residual   (m, C) gradient of L by the logits of the clean rows
    solutions  the W_k*
    """

    decay: float
    values: Array
    total: float
    losses: Array
    residual: Array
    solutions: list[Array]


def _meta_learn(
    f: FixedFeatures, sources: list[LabelSource], decays: list[float], start: Array, steps: int
) -> Generator[None, None, MetaPoint]:
    """Minimize the meta-objective by a few steps of gradient descent from the best of the λ.

    Return the start unless the end is better.
    """
    first = yield from _meta_objective(f, sources, np.zeros(5), decays[0], [start] * f.folds)
    for decay in decays[1:]:
        point = yield from _meta_objective(f, sources, np.zeros(5), decay, first.solutions)
        first = _better(first, point)
    gradient = yield from _meta_gradient(f, sources, first)
    best, rate = first, META_RATE
    for step in range(steps):
        if rate * float((gradient**2).sum()) / 2 < len(best.values):
            break
        values = best.values - np.clip(rate * gradient, -MAX_META_STEP, MAX_META_STEP)
        point = yield from _meta_objective(f, sources, values, first.decay, best.solutions)
        if point.total >= best.total:
            rate /= 4
            continue
        best = point
        if step < steps - 1:
            gradient = yield from _meta_gradient(f, sources, best)
    return _better(first, best)


def _better(first: MetaPoint, other: MetaPoint) -> MetaPoint:
    """Return `other` if its cross-entropy is lower by more than a standard error, else `first`."""
    gain = first.losses - other.losses
    return other if gain.mean() > gain.std() / np.sqrt(len(gain)) else first


def _meta_objective(
    f: FixedFeatures, sources: list[LabelSource], values: Array, decay: float, starts: list[Array]
) -> Generator[None, None, MetaPoint]:
    """Fit the W_k* and evaluate them on their clean folds.

    The logits are divided by the temperature that minimizes the objective. Its derivative is 0 there, so that it does
    not enter the gradient.
    """
    n, X, clean_fold = f.n, f.X, f.fold[f.n :]
    solutions, held_out_logits = [], np.zeros((len(f.true), f.classes))
    for k, (source, start) in enumerate(zip(sources, starts, strict=True)):
        q, w = _student_labels(f, source, values, k)
        W = fit_logistic(X, q, w, decay * np.exp(values[4]), start=start, tolerance=CROSS_FIT_TOLERANCE)
        yield
        solutions.append(W)
        held_out_logits[clean_fold == k] = logits(X[n:][clean_fold == k], W)
    t, _ = fit_temperature(torch.from_numpy(held_out_logits), torch.from_numpy(f.true))
    log_p = log_softmax(held_out_logits / t)
    losses = -log_p[np.arange(len(f.true)), f.true]
    # The pseudo-sample with a uniform label that `fit_temperature` adds is part of the objective: see its docstring.
    target = np.eye(f.classes)[f.true] + 1 / (len(f.true) * f.classes)
    return MetaPoint(
        decay=decay,
        values=values,
        total=float(losses.sum() - log_p.mean() + (PRIOR_PRECISION * values**2).sum() / 2),
        losses=losses,
        residual=(target.sum(1, keepdims=True) * np.exp(log_p) - target) / t,
        solutions=solutions,
    )


def _meta_gradient(f: FixedFeatures, sources: list[LabelSource], point: MetaPoint) -> Generator[None, None, Array]:
    """Return the gradient of the meta-objective by its values, through the W_k*."""
    n, X, values = f.n, f.X, point.values
    gradient = PRIOR_PRECISION * values
    for k, (source, W) in enumerate(zip(sources, point.solutions, strict=True)):
        q, w = _student_labels(f, source, values, k)
        rows = np.flatnonzero(f.fold[n:] == k)
        r = point.residual[rows]
        g = np.concatenate([X[n + rows].T @ r, r.sum(0, keepdims=True)])
        by = differentiate_solution(X, W, q, w, point.decay * np.exp(values[4]), g, tolerance=CROSS_FIT_TOLERANCE)
        yield
        by_logits = q[:n] * (by.labels[:n] - (q[:n] * by.labels[:n]).sum(1, keepdims=True))
        gradient[:3] += np.einsum("fnc,nc->f", source.opinions, by_logits)
        gradient[3] += float((w[n:] * by.weights[n:]).sum())
        gradient[4] += by.log_decay
    return gradient


def _fit_naive_bayes_students(
    f: FixedFeatures, sources: list[LabelSource], values: Array, smoothing: float
) -> list[Array]:
    """Return the coefficients of naive Bayes fitted to what the W_k* were fitted to."""
    labels = (_student_labels(f, source, values, k) for k, source in enumerate(sources))
    return [fit_naive_bayes(f.X, q, w, smoothing) for q, w in labels]


def _student_labels(f: FixedFeatures, source: LabelSource, values: Array, k: int) -> tuple[Array, Array]:
    """Return labels and weights that W_k* is fitted to."""
    q, w = _with_clean_rows(f, source.soft_labels(values[:3]), CLEAN_WEIGHT * np.exp(values[3]))
    return q, w * (f.fold != k)


def _with_clean_rows(f: FixedFeatures, soft_labels: Array, clean_weight: float) -> tuple[Array, Array]:
    """Return labels and weights of all rows: soft labels of the training rows, labels of the clean rows."""
    q = np.concatenate([soft_labels, np.eye(f.classes)[f.true]])
    return q, np.concatenate([np.ones(f.n), np.full(len(f.true), clean_weight)])


def _cross_pool(f: FixedFeatures, opinions: Array) -> Array:
    """Return the logits of the clean rows from their opinions, each by a pool that was fitted without its fold."""
    fold = f.fold[f.n :]
    pooled: Array = np.zeros(opinions.shape[1:])
    for k in range(f.folds):
        rows = fold == k
        pool = fit_label_pool(opinions[:, ~rows], f.true[~rows], f.clean_weights[~rows])
        pooled[rows] = pool.logits(opinions[:, rows])
    return pooled
