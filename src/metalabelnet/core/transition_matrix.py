"""The transition matrix of label noise, T_ij = P(given label j | true class i), by three estimators.

`count_transitions`        from samples that carry both labels; its precision depends only on their number
`estimate_transitions`     from the predictions of a network trained on given labels, on clean samples and on samples
                           it was not trained on
`transitions_from_anchors` from the predictions of a network trained on given labels alone, at one confident sample of
                           each class

All three assume that a wrong label depends on the true class and not on the sample. If it depends on the sample,
counting is still unbiased. `estimate_transitions` is then biased low, because the network predicts a part of the wrong
labels, and that part is attributed to the network's own confusion.
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
    confusion = measure_confusion(clean, true)
    return solve_transitions(confusion, confusion.class_sums(noisy, given), len(given), steps)


class Confusion(NamedTuple):
    """A network's own confusion M, and the temperature t of f."""

    M: Tensor
    t: float

    def class_sums(self, noisy: Tensor, given: Tensor) -> Tensor:
        """Return the sum of f_k · [given label = j] over noisy samples; those of several parts can be added."""
        f_noisy = _apply_temperature(noisy, self.t)
        return f_noisy.T @ functional.one_hot(given, noisy.shape[1]).to(f_noisy)


def measure_confusion(clean: Tensor, true: Tensor) -> Confusion:
    """Return M and t of `estimate_transitions` from its clean samples."""
    t = _fit_temperature_on_grid(clean, true)
    f_clean = _apply_temperature(clean, t)
    is_class = functional.one_hot(true, clean.shape[1]).to(f_clean)
    return Confusion(_normalize_rows(is_class.T @ f_clean), t)


def solve_transitions(confusion: Confusion, sums: Tensor, samples: int, steps: int = 300) -> EstimatedTransitions:
    """Return T and π of `estimate_transitions` from M, and the sums over all noisy samples and their number."""
    M, N, classes = confusion.M, sums / samples, len(sums)
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
