"""What a given label adds to what was known of a sample without it.

    p_k(x)     the probability of class k, in which the given label y has no part
    T_kj       P(given label j | true class k), the likeliest for the given labels of all samples
    q_k(x, y)  ∝ p_k(x) T_ky

True where a wrong label depends on the class alone. Where it depends on the sample too — the hard ones are mistaken,
for the class they look like — p has said already what y says, and q counts it twice: it believes given labels that p
alone sees through. That shows without a sample that carries both labels. If q is right, p is as far off by q (`off_by`)
as on clean samples (`off`); if q believes wrong labels, p seems to be wrong wherever it sees through one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

STEPS = 30
KEPT = 0.7  # share of right labels to begin with


def noise_matrix(p: Tensor, given: Tensor) -> Tensor:
    """T by expectation-maximisation; to each row comes one more sample of which nothing is known."""
    classes, p, given = p.shape[1], p[given >= 0].double(), given[given >= 0]
    y = functional.one_hot(given, classes).to(p)
    T = torch.full((classes, classes), (1 - KEPT) / max(1, classes - 1), dtype=p.dtype, device=p.device)
    T.fill_diagonal_(KEPT)
    for _ in range(STEPS):
        table = posterior(p, given, T).T @ y + 1 / classes
        T = table / table.sum(1, keepdim=True)
    return T


def posterior(p: Tensor, given: Tensor, T: Tensor) -> Tensor:
    """The q of each sample; p where there is no given label."""
    q = p.double() * T.T[given.clamp_min(0)]
    q = q / q.sum(1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    return torch.where((given >= 0)[:, None], q, p.double()).to(p.dtype)


def off(clean: Tensor, true: Tensor) -> tuple[float, float]:
    """How much more often argmax p is right on clean samples than p expects, and the standard error of that.

        mean of [true class is a] − p_a,    a = argmax p

    The error is at least that of one sample among n + 2, because none wrong among few is no proof.

    clean, true  (n, C) p of clean samples and (n,) their classes
    """
    p_a, a = clean.double().max(1)
    n, right = max(1, len(true)), (a == true).double() - p_a
    return float(right.sum()) / n, math.sqrt(max(float(right.square().sum()) / n, 1 / (n + 2)) / n)


def off_by(q: Tensor, p: Tensor) -> float:
    """The same on samples with given labels, where q says what is right: mean of q_a − p_a, (N, C) each."""
    p_a, a = p.double().max(1, keepdim=True)
    return float((q.double().gather(1, a) - p_a).mean())


def doubted(T: Tensor, p: Tensor, share: float) -> Tensor:
    """T, but that share of the labels goes to the classes that p confuses with the true one, whatever T says."""
    p = p.double()
    confused = (p.T @ p).fill_diagonal_(0)
    confused = confused / confused.sum(1, keepdim=True).clamp_min(torch.finfo(confused.dtype).tiny)
    return (1 - share) * T + share * confused
