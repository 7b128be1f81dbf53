"""The transition matrix of label noise, T_ij = P(given label j | true class i), by three estimators.

`count_transitions`        from samples that carry both labels; its precision depends only on their number
`estimate_transitions`     from the predictions of a network trained on given labels, on clean samples and on samples
                           it was not trained on
`transitions_from_anchors` from the predictions of a network trained on given labels alone, at one confident sample of
                           each class

All three assume that a wrong label depends on the true class and not on the sample. If it depends on the sample,
counting is still unbiased. `estimate_transitions` is then biased low, because the network predicts a part of the wrong
labels, and that part is attributed to the network's own confusion.

`deconfounded` corrects a T that is the mean prediction of a network on clean samples, and so includes the network's own
confusion.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURES = [10 ** (k / 40) for k in range(-60, 41)]  # from 0.03 to 10


class CountedTransitions(NamedTuple):
    """T, the share of wrong labels among the counted samples, and the standard error of that share."""

    T: Tensor
    rate: float
    standard_error: float


class EstimatedTransitions(NamedTuple):
    """T, and the frequencies π of the true classes among the samples with given labels."""

    T: Tensor
    prior: Tensor


def count_transitions(true: Tensor, given: Tensor, classes: int) -> CountedTransitions:
    """Return T_ij = share of the samples of class i with given label j; the row of a class without samples is identity.

    The standard error is that of a proportion, √(r(1 − r)/n), with one more sample of each outcome: zero wrong labels
    in a small sample do not prove that there are none.
    """
    counts = torch.bincount(true * classes + given, minlength=classes * classes).view(classes, classes).double()
    n, wrong = len(true), int((true != given).sum())
    r = (wrong + 1) / (n + 2)
    return CountedTransitions(_normalize_rows(counts), wrong / n, math.sqrt(r * (1 - r) / n))


def estimate_transitions(
    clean: Tensor, true: Tensor, noisy: Tensor, given: Tensor, steps: int = 300
) -> EstimatedTransitions:
    """Return T from a network's probabilities of clean samples and of samples it was not trained on.

    The mean of p over the clean samples of class i is not row i of T: it contains the network's own confusion, which
    looks like noise (it overestimates the noise rate by 0.1 to 0.2). The confusion is measured on the clean samples and
    removed. Let f be p sharpened (by a temperature) to predict the true class best. For noise that depends on the class
    alone,

        N_kj = Σ_i M_ik J_ij    M_ik = mean of f_k over the clean samples of class i
                                N_kj = mean of f_k · [given label = j] over the noisy samples
                                J_ij = P(true class i, given label j)

    `steps` steps of expectation-maximization solve for J and keep it a distribution. T is J with normalized rows, π the
    row sums of J.

    clean, true   (n, C) probabilities and (n,) true classes; a class without samples is assumed to have no confusion
    noisy, given  (m, C) probabilities and (m,) given labels of samples that the network was not trained on
    """
    classes = clean.shape[1]
    t = _fit_temperature_on_grid(clean, true)
    f_clean, f_noisy = (_apply_temperature(p, t) for p in (clean, noisy))
    is_class = functional.one_hot(true, classes).to(f_clean)
    M = _normalize_rows(is_class.T @ f_clean)
    N = f_noisy.T @ functional.one_hot(given, classes).to(f_noisy) / len(given)
    J = (torch.eye(classes).to(N) + 1 / classes) / (2 * classes)
    for _ in range(steps):
        J = J * (M @ (N / (M.T @ J).clamp_min(_tiny(N))))
    return EstimatedTransitions(_normalize_rows(J), J.sum(1) / J.sum())


def transitions_from_anchors(probabilities: Tensor, percentile: float = 97.0) -> Tensor:
    """Return T by anchor points: row i is p of the sample with the highest p_i below a percentile of p_i.

    The percentile excludes memorized samples, whose p_i is higher than the noise allows. At most half of the samples
    that are predicted as class i are excluded; with many classes, or a rare one, the percentile would exclude all.

    References
    ----------
    .. [1] G. Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach",
       CVPR 2017, https://arxiv.org/abs/1609.03683
    """
    n, classes = probabilities.shape
    predicted = torch.bincount(probabilities.argmax(1), minlength=classes)
    percentile_rank = math.ceil(percentile / 100 * (n - 1))
    rank = torch.maximum(n - 1 - predicted // 2, torch.full_like(predicted, percentile_rank))
    threshold = probabilities.sort(0).values.gather(0, rank[None])[0]
    below = torch.where(probabilities < threshold, probabilities, -1.0)
    anchors = torch.where((below >= 0).any(0), below.argmax(0), probabilities.argmax(0))
    return _normalize_rows(probabilities[anchors].double())


def deconfounded(T: Tensor, clean: Tensor, true: Tensor) -> Tensor:
    """Return T corrected for the classifier's own confusion, as far as the noise is uniform.

    T is the mean prediction of given labels for each class. For two similar classes a network predicts each other's
    labels, with or without noise. Uniform noise puts labels on every class, also on those that resemble nothing. The
    smaller half of the off-diagonal entries of a row of T, scaled up to all classes, estimates ε, the share of uniform
    noise. It is slightly too large, because confusion contributes to these entries too: δ, the same statistic of M, the
    mean of the probabilities sharpened as in `estimate_transitions` to predict the true class. Feature-dependent noise
    leaves both close to 0. The share of uniform noise in all noise of T is

        u = (ε − δ) / ((1 − δ)(1 − mean T_cc))
        u ≥ 0.4    the rest is attributed to confusion: T becomes (1 − ε) I + ε/C
        u ≤ 0.3    T is returned unchanged, as it is for two classes, which have no smaller half

    and a mixture of the two in between.

    clean, true   (n, C) probabilities of given labels and (n,) true classes, from which T was computed; classes without
                  samples are left out of ε
    """
    classes = len(T)
    if classes < 3:  # a single other class has no smaller half
        return T
    is_class = functional.one_hot(true, classes).to(T)
    present = is_class.any(0)
    sharpened = _apply_temperature(clean, _fit_temperature_on_grid(clean, true)).to(T)
    M = _normalize_rows(is_class.T @ sharpened)
    rate, confusion = (_uniform_share(matrix[present]) for matrix in (T, M))
    uniform = (rate - confusion) / (1 - confusion).clamp_min(_tiny(T))
    u = uniform / (1 - T.diagonal()[present].mean()).clamp_min(_tiny(T))
    share = (10 * u - 3).clamp(0, 1)
    return share * ((1 - rate) * torch.eye(classes).to(T) + rate / classes) + (1 - share) * T


def _uniform_share(rows: Tensor) -> Tensor:
    """Return the mean of the smaller half of all entries of a row but the largest, times the number of classes."""
    classes = rows.shape[1]
    return rows.sort(1).values[:, : (classes - 1) // 2].mean() * classes


def class_prior(T: Tensor, given: Tensor, start: Tensor, steps: int = 10) -> Tensor:
    """Return π, the frequencies of the true classes, from those of the given labels: the solution of πT = given.

    Computed by a few steps of expectation-maximization from `start`, such as the frequencies in the clean set. More
    steps fit the given frequencies better, but also the errors of a T counted on few samples.
    """
    prior = start / start.sum()
    for _ in range(steps):
        prior = prior * (T @ (given / given.sum() / (prior @ T).clamp_min(_tiny(T))))
        prior = prior / prior.sum()
    return prior


def noise_rate(T: Tensor, prior: Tensor) -> float:
    """Return the share of wrong labels, 1 − Σ_i π_i T_ii, with π the frequencies of the true classes.

    Pass the frequencies of the training samples. A clean set is often balanced by hand, which overweights the noise of
    rare classes.
    """
    return float(1 - (prior * T.diagonal()).sum())


def _fit_temperature_on_grid(p: Tensor, labels: Tensor) -> float:
    """Return the t for which p^(1/t), normalized, maximizes the likelihood of the labels."""
    logits = _log(p)
    losses = torch.stack([functional.cross_entropy(logits / t, labels) for t in TEMPERATURES])
    return TEMPERATURES[int(losses.argmin())]


def _apply_temperature(p: Tensor, t: float) -> Tensor:
    return (_log(p) / t).softmax(1)


def _log(p: Tensor) -> Tensor:
    return p.double().clamp_min(1e-30).log()  # a probability of 0 would give an infinite loss


def _normalize_rows(matrix: Tensor) -> Tensor:
    """Return each row divided by its sum; a row of zeros becomes that of the identity."""
    total = matrix.sum(1, keepdim=True)
    return torch.where(total > 0, matrix / total.clamp_min(_tiny(matrix)), torch.eye(len(matrix)).to(matrix))


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
