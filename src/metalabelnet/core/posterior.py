"""Combine a class probability estimated without the given label with the given label, by Bayes' rule.

    p_k(x)     probability of class k, estimated without the given label y of x
    T_kj       P(given label j | true class k), the maximum-likelihood estimate from the given labels of all samples
    q_k(x, y)  ∝ p_k(x) T_ky

q is correct if a wrong label depends on the class alone. If it depends on the sample too (ambiguous samples are
mislabeled as the class they resemble), p already contains part of the information in y, and q counts it twice: it
accepts wrong labels that p alone would reject. This can be detected without samples that carry both labels. If q is
correct, the gap between accuracy and confidence of p is the same whether measured with q (`posterior_confidence_gap`)
or on clean samples (`clean_confidence_gap`). If q accepts wrong labels, p appears to be wrong wherever it rejects one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

EM_STEPS = 30
INITIAL_DIAGONAL = 0.7  # share of correct labels that expectation-maximization starts from


def fit_transition_matrix(p: Tensor, given: Tensor) -> Tensor:
    """Return T by expectation-maximization, with one pseudo-sample of uniform label added to each row.

    p, given  (N, C) probabilities and (N,) given labels, −1 where unlabeled
    """
    classes, p, given = p.shape[1], p[given >= 0].double(), given[given >= 0]
    y = functional.one_hot(given, classes).to(p)
    T = torch.full((classes, classes), (1 - INITIAL_DIAGONAL) / max(1, classes - 1), dtype=p.dtype, device=p.device)
    T.fill_diagonal_(INITIAL_DIAGONAL)
    for _ in range(EM_STEPS):
        counts = posterior(p, given, T).T @ y + 1 / classes
        T = counts / counts.sum(1, keepdim=True)
    return T


def posterior(p: Tensor, given: Tensor, T: Tensor) -> Tensor:
    """Return q of each sample, or p where a sample has no given label."""
    q = p.double() * T.T[given.clamp_min(0)]
    q = q / q.sum(1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    return torch.where((given >= 0)[:, None], q, p.double()).to(p.dtype)


def clean_confidence_gap(clean: Tensor, true: Tensor) -> tuple[float, float]:
    """Return accuracy minus mean confidence of p on clean samples, and its standard error.

        mean of [true class is a] − p_a,    a = argmax p

    The standard error is at least that of one error among n + 2 samples, because zero errors in a small sample do not
    prove that there are none.

    clean, true  (n, C) p of clean samples and (n,) their classes
    """
    p_a, a = clean.double().max(1)
    n, gap = max(1, len(true)), (a == true).double() - p_a
    return float(gap.sum()) / n, math.sqrt(max(float(gap.square().sum()) / n, 1 / (n + 2)) / n)


def posterior_confidence_gap(q: Tensor, p: Tensor) -> float:
    """Return the same gap on samples with given labels, with q as the truth: the mean of q_a − p_a; both (N, C)."""
    p_a, a = p.double().max(1, keepdim=True)
    return float((q.double().gather(1, a) - p_a).mean())


def mix_in_confusion(T: Tensor, p: Tensor, share: float) -> Tensor:
    """Return (1 − share) T + share K, where row k of K are the classes that p confuses with class k."""
    p = p.double()
    confusion = (p.T @ p).fill_diagonal_(0)
    confusion = confusion / confusion.sum(1, keepdim=True).clamp_min(torch.finfo(confusion.dtype).tiny)
    return (1 - share) * T + share * confusion
