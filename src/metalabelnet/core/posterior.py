"""What a given label adds to what was known of a sample without it.

    p_k(x)     the probability of class k, in which the given label y has no part
    T_kj       P(given label j | true class k), the likeliest for the given labels of all samples
    q_k(x, y)  ∝ p_k(x) T_ky

True where a wrong label depends on the class alone. Where it depends on the sample too — the hard ones are mistaken,
for the class they look like — p has said already what y says, and q counts it twice: it believes given labels that p
alone sees through. That shows without a sample that carries both labels. If q is right, p is right as often by q as it
is on clean samples (`apart`); if q believes wrong labels, p seems to be wrong wherever it sees through one.
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


def apart(p: Tensor, q: Tensor, clean: Tensor, true: Tensor) -> float:
    """How far q is from what clean samples say of p, at least one standard error of theirs.

    |share of samples where argmax p is right by q − share of clean samples where it is right|, and the standard error
    of the latter with one sample more of each kind, because none wrong among few is no proof.

    p, q         (N, C) of samples with given labels
    clean, true  (n, C) p of clean samples and (n,) their classes
    """
    by_q = float(q.gather(1, p.argmax(1, keepdim=True)).double().mean())
    n, right = len(true), int((clean.argmax(1) == true).sum())
    r = (right + 1) / (n + 2)
    return abs(by_q - right / max(1, n)) + math.sqrt(r * (1 - r) / max(1, n))


def doubted(T: Tensor, p: Tensor, share: float) -> Tensor:
    """T, but that share of the labels goes to the classes that p confuses with the true one, whatever T says."""
    p = p.double()
    confused = (p.T @ p).fill_diagonal_(0)
    confused = confused / confused.sum(1, keepdim=True).clamp_min(torch.finfo(confused.dtype).tiny)
    return (1 - share) * T + share * confused
