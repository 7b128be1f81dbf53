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

import itertools
import math
import weakref
from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor

from metalabelnet.core.top_classes import ClassTable, TopClasses, row_chunks, value_at

EM_STEPS = 30
INITIAL_DIAGONAL = 0.7  # share of correct labels that expectation-maximization starts from
MAX_PRODUCTS_OF_CONFUSION = 1 << 28  # p_k p_j of sparse rows; beyond, rows are subsampled


def fit_transition_matrix(p: ClassTable, given: Tensor) -> Tensor:
    """Return T by expectation-maximization, with one pseudo-sample of uniform label added to each row.

    p, given  (N, C) probabilities and (N,) given labels, −1 where unlabeled

    With s_i = Σ_k p_k(x_i) T_k,y_i a step is T_kj ∝ T_kj Σ_{i: y_i = j} p_k(x_i) / s_i + 1/C. It costs N C, or N K for
    sparse rows.
    """
    classes, device = p.shape[1], given.device
    p, given = p[given >= 0], given[given >= 0]
    # Label j is a row of the transposed matrix: p_k of samples with the same label read neighboring values.
    off_diagonal = (1 - INITIAL_DIAGONAL) / max(1, classes - 1)
    transposed = torch.full((classes, classes), off_diagonal, dtype=torch.float64, device=device)
    transposed.fill_diagonal_(INITIAL_DIAGONAL)
    # Sparse rows are summed by index, which is not deterministic on a GPU.
    label_sums = _dense_label_sums(p, given) if isinstance(p, Tensor) else _sparse_label_sums(p.to("cpu"), given.cpu())
    for _ in range(EM_STEPS):
        counts = label_sums(transposed).mul_(transposed).add_(1 / classes)
        transposed = counts.div_(counts.sum(0))
    return transposed.T.contiguous()


TransitionMatrixFit = Callable[[ClassTable, Tensor], Tensor]


class LastTransitionMatrix:
    """`fit_transition_matrix` that stores the last T, and returns it if it is asked for the same p and labels again."""

    def __init__(self) -> None:
        self._last: tuple[weakref.ref[Tensor | TopClasses], weakref.ref[Tensor], Tensor] | None = None

    def __call__(self, p: ClassTable, given: Tensor) -> Tensor:
        """Return T."""
        if self._last is None or self._last[0]() is not p or self._last[1]() is not given:
            self._last = weakref.ref(p), weakref.ref(given), fit_transition_matrix(p, given)
        return self._last[2]


def _dense_label_sums(p: Tensor, given: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function Tᵀ → Σ_{i: y_i = j} p_k(x_i) / s_i, by j and k; rows are sorted by given label once."""
    order = given.argsort(stable=True)
    groups = torch.split(p[order].double(), torch.bincount(given, minlength=p.shape[1]).tolist())

    def sums(transposed: Tensor) -> Tensor:
        return torch.stack([group.T @ (1 / (group @ t)) for group, t in zip(groups, transposed, strict=True)])

    return sums


def _sparse_label_sums(p: TopClasses, given: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the same function for sparse rows. A row is its rest plus what its stored values exceed the rest by."""
    classes, order = p.total, given.argsort(stable=True)
    p, given = p[order], given[order]
    cells, excesses = p.classes.long() + classes * given[:, None], p.values - p.rest[:, None]
    chunks = [
        (cells[rows].flatten(), excesses[rows], p.rest[rows].double(), given[rows])
        for rows in row_chunks(cells.shape, cells.device)
    ]
    buffers = itertools.cycle([torch.empty(classes * classes, dtype=torch.float64) for _ in range(2)])

    def sums(transposed: Tensor) -> Tensor:
        matrix = transposed.cpu()
        label_mass = matrix.sum(1)
        stored = next(buffers).zero_()  # not the one that holds `transposed`
        rest = torch.zeros(classes, dtype=torch.float64)
        for cell, excess, r, y in chunks:
            s = (matrix.view(-1).index_select(0, cell).view_as(excess) * excess).sum(1) + label_mass[y] * r
            stored.scatter_add_(0, cell, (excess / s[:, None]).flatten())
            rest.index_add_(0, y, r / s)
        return stored.view(classes, classes).add_(rest[:, None]).to(transposed.device)

    return sums


@overload
def posterior(p: Tensor, given: Tensor, T: Tensor) -> Tensor: ...
@overload
def posterior(p: ClassTable, given: Tensor, T: Tensor) -> ClassTable: ...
def posterior(p: ClassTable, given: Tensor, T: Tensor) -> ClassTable:
    """Return q of each sample, or p where a sample has no given label."""
    if isinstance(p, TopClasses):
        return _sparse_posterior(p, given, T)
    q = p.double() * T.T[given.clamp_min(0)]
    q = q / q.sum(1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    return torch.where((given >= 0)[:, None], q, p.double()).to(p.dtype)


def _sparse_posterior(p: TopClasses, given: Tensor, T: Tensor) -> TopClasses:
    """Return sparse rows: the classes that are not stored share their mass equally."""
    y = given.clamp_min(0)
    T_y = T.reshape(-1)[p.classes.long() * p.total + y[:, None]]
    stored, rest = p.values.double() * T_y, p.rest.double() * (T.sum(0)[y] - T_y.sum(1)).clamp_min(0)
    total = (stored.sum(1) + rest).clamp_min(torch.finfo(stored.dtype).tiny)
    q = p.with_values((stored / total[:, None]).to(p.dtype), (rest / total / p.others).to(p.dtype))
    labeled = given >= 0
    return p.with_values(torch.where(labeled[:, None], q.values, p.values), torch.where(labeled, q.rest, p.rest))


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


def posterior_confidence_gap(q: ClassTable, p: ClassTable) -> float:
    """Return the same gap on samples with given labels, with q as the truth: the mean of q_a − p_a; both (N, C)."""
    p_a, a = p.double().max(1)
    return float((value_at(q.double(), a) - p_a).mean())


def mix_in_confusion(T: Tensor, p: ClassTable, share: float) -> Tensor:
    """Return (1 − share) T + share K, where row k of K are the classes that p confuses with class k."""
    confusion = (_dense_products(p) if isinstance(p, Tensor) else _sparse_products(p)).to(T.device).fill_diagonal_(0)
    confusion = confusion / confusion.sum(1, keepdim=True).clamp_min(torch.finfo(confusion.dtype).tiny)
    return (1 - share) * T + share * confusion


def _dense_products(p: Tensor) -> Tensor:
    p = p.double()
    return p.T @ p


def _sparse_products(p: TopClasses) -> Tensor:
    """Return Σ_i p_k(x_i) p_j(x_i) for all k and j.

    With the row p = e + r, where e are the excesses over the rest r, it is Σ_i (e_k e_j + e_k r + r e_j + r²).
    """
    k = p.values.shape[1]
    p = p[:: max(1, math.ceil(len(p) * k * k / MAX_PRODUCTS_OF_CONFUSION))].to("cpu")
    products = torch.zeros(p.total * p.total, dtype=torch.float64)
    with_rest = torch.zeros(p.total, dtype=torch.float64)
    for rows in row_chunks((len(p), k * k), p.device):
        part = p[rows].double()
        c, excess = part.classes.long(), part.values - part.rest[:, None]
        cells = c[:, :, None] * p.total + c[:, None, :]
        products.index_add_(0, cells.flatten(), (excess[:, :, None] * excess[:, None, :]).flatten())
        with_rest.index_add_(0, c.flatten(), (excess * part.rest[:, None]).flatten())
    squares = p.rest.double().square().sum()
    return products.view(p.total, p.total) + with_rest[:, None] + with_rest + squares
