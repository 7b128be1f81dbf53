"""The transition matrix of label noise, T_ij = P(given label j | true class i), found in three ways.

`counted`    on samples that carry both labels: needs nothing else, and is as exact as their number allows
`estimated`  from a network that learned given labels, asked about clean samples and about samples it never saw
`anchor`     from a network that learned given labels alone, by a sample of each class that it is surest of

All three see noise through T, as if a wrong label depended on the true class and not on the sample. Where it does
depend on the sample, a count is still right on average; an estimate is too low, because the network expects a part of
the wrong labels and takes that part for its own mistakes. `without_doubt` is for a T that is nothing but what a network
expects of clean samples, with its doubt in it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURES = [10 ** (k / 40) for k in range(-60, 41)]  # from 0.03 to 10


class Count(NamedTuple):
    """What a count gives: T, the share of wrong labels among the counted samples, and its standard error."""

    T: Tensor
    rate: float
    error: float


class Estimate(NamedTuple):
    """What an estimate gives: T, and the frequencies π of the true classes among the samples with given labels."""

    T: Tensor
    prior: Tensor


def counted(true: Tensor, given: Tensor, classes: int) -> Count:
    """T_ij = share of the samples of class i that were given label j. A class without samples keeps its label.

    The standard error is that of a share, √(r(1 − r)/n), with one sample more of each kind: none wrong among few
    samples is no proof that none is.
    """
    table = torch.bincount(true * classes + given, minlength=classes * classes).view(classes, classes).double()
    n, wrong = len(true), int((true != given).sum())
    r = (wrong + 1) / (n + 2)
    return Count(_rows_normalised(table), wrong / n, math.sqrt(r * (1 - r) / n))


def estimated(clean: Tensor, true: Tensor, noisy: Tensor, given: Tensor, steps: int = 300) -> Estimate:
    """T from a network's probabilities of clean samples, and of samples whose given labels it did not learn from.

    The mean of p over the clean samples of class i is not row i of T: a network is unsure of the class too, and that
    doubt looks like noise (0.1 to 0.2 too much noise where it was tried). But what doubt there is can be seen on the
    clean samples, and taken out. With f = p sharpened to predict the true class best, and noise that depends on the
    class alone,

        N_kj = Σ_i M_ik J_ij    M_ik = mean of f_k over the clean samples of class i
                                N_kj = mean of f_k · [given label = j] over the noisy samples
                                J_ij = P(true class i, given label j)

    and J is found by `steps` steps of expectation-maximisation, which keep it a distribution. T is J with its rows
    normalised, π the sums of its rows.

    clean, true   (n, C) probabilities and (n,) true classes; a class without samples is taken to be recognised
    noisy, given  (m, C) probabilities and (m,) given labels, none of them learned from by the network asked
    """
    classes = clean.shape[1]
    t = _temperature(clean, true)
    f_clean, f_noisy = (_sharpened(p, t) for p in (clean, noisy))
    of_class = functional.one_hot(true, classes).to(f_clean)
    M = _rows_normalised(of_class.T @ f_clean)
    N = f_noisy.T @ functional.one_hot(given, classes).to(f_noisy) / len(given)
    J = (torch.eye(classes).to(N) + 1 / classes) / (2 * classes)
    for _ in range(steps):
        J = J * (M @ (N / (M.T @ J).clamp_min(_tiny(N))))
    return Estimate(_rows_normalised(J), J.sum(1) / J.sum())


def anchor(probabilities: Tensor, percentile: float = 97.0) -> Tensor:
    """Row i is p of the sample with the highest p_i below that percentile of p_i (Patrini et al. 2017).

    The percentile leaves out samples that the network is surer of than noise allows: those it knows by heart. Of the
    samples that it takes for class i half are left out at most: with many classes, or a rare one, all would be.
    """
    n, classes = probabilities.shape
    taken = torch.bincount(probabilities.argmax(1), minlength=classes)
    most = math.ceil(percentile / 100 * (n - 1))
    rank = torch.maximum(n - 1 - taken // 2, torch.full_like(taken, most))
    threshold = probabilities.sort(0).values.gather(0, rank[None])[0]
    below = torch.where(probabilities < threshold, probabilities, -1.0)
    chosen = torch.where((below >= 0).any(0), below.argmax(0), probabilities.argmax(0))
    return _rows_normalised(probabilities[chosen].double())


def deconfounded(T: Tensor, clean: Tensor, true: Tensor) -> Tensor:
    """T without what is the network's own doubt, as far as the noise looks random; T is what it expects of each class.

    Of two classes that look alike a network expects each other's labels, noise or no noise. Labels drawn at random
    fall on every class, on those too that nothing speaks for. The lesser half of what a row of T has for other classes,
    scaled up to all of them, is ε, the share of such labels, and a little more, because doubt reaches there too: δ, by
    the same count of M, the means of the probabilities f that are sharpened as in `estimated` to predict the true
    class. Noise that follows the features leaves both nearly empty. Of all that T takes for noise the random share is

        u = (ε − δ) / ((1 − δ)(1 − mean T_cc))
        u ≥ 0.4    the rest is taken for doubt: T is (1 − ε) I + ε/C
        u ≤ 0.3    nothing says so: T stays as it is. So it does with two classes, which have no lesser half.

    and between the two T is a mixture.

    clean, true   (n, C) probabilities of given labels and (n,) true classes, from which T was made; a class without
                  samples says nothing about ε
    """
    classes = len(T)
    if classes < 3:  # one other class has no lesser half
        return T
    of_class = functional.one_hot(true, classes).to(T)
    seen = of_class.any(0)
    M = _rows_normalised(of_class.T @ _sharpened(clean, _temperature(clean, true)).to(T))
    rate, doubt = (_on_lesser(table[seen]) for table in (T, M))
    random = (rate - doubt) / (1 - doubt).clamp_min(_tiny(T))
    u = random / (1 - T.diagonal()[seen].mean()).clamp_min(_tiny(T))
    share = (10 * u - 3).clamp(0, 1)
    return share * ((1 - rate) * torch.eye(classes).to(T) + rate / classes) + (1 - share) * T


def _on_lesser(rows: Tensor) -> Tensor:
    """What rows have for the lesser half of all classes but the foremost, as if all classes had so much."""
    classes = rows.shape[1]
    return rows.sort(1).values[:, : (classes - 1) // 2].mean() * classes


def class_prior(T: Tensor, given: Tensor, start: Tensor, steps: int = 10) -> Tensor:
    """π, the frequencies of the true classes, from those of the given labels: the solution of πT = given.

    By a few steps of expectation-maximisation from `start`, such as the frequencies in the clean set. More steps fit
    the given frequencies better, and the errors of a T counted on few samples too.
    """
    prior = start / start.sum()
    for _ in range(steps):
        prior = prior * (T @ (given / given.sum() / (prior @ T).clamp_min(_tiny(T))))
        prior = prior / prior.sum()
    return prior


def noise_rate(T: Tensor, prior: Tensor) -> float:
    """The share of wrong labels, 1 − Σ_i π_i T_ii, where π are the frequencies of the true classes.

    Those of the training samples: a clean set has as many samples of a rare class as of a frequent one, if a person
    chose it so, and the noise of the rare class then counts too much.
    """
    return float(1 - (prior * T.diagonal()).sum())


def _temperature(p: Tensor, labels: Tensor) -> float:
    """The t with which p^(1/t), normalised, makes these labels likeliest; from a grid, which cannot fail."""
    logits = _log(p)
    losses = torch.stack([functional.cross_entropy(logits / t, labels) for t in TEMPERATURES])
    return TEMPERATURES[int(losses.argmin())]


def _sharpened(p: Tensor, t: float) -> Tensor:
    return (_log(p) / t).softmax(1)


def _log(p: Tensor) -> Tensor:
    return p.double().clamp_min(1e-30).log()  # no class is impossible: one clean sample of it would end the matter


def _rows_normalised(table: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros becomes that of the identity."""
    total = table.sum(1, keepdim=True)
    return torch.where(total > 0, table / total.clamp_min(_tiny(table)), torch.eye(len(table)).to(table))


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
