"""A last layer fitted to a few labels that are right, near the layer that is there.

    u      the features, each with mean 0 and deviation 1 over the labeled samples
    D      the weight of the layer that is there, as it reads u
    V, b   the least of the mean cross-entropy of V u + b, plus λ/2 ‖V − sD‖², with the best s; a label that is right in
           N cases is counted as one that every class had once besides: where a few are all right, none is certain
    λ      of DECAYS, beside the layer that is there or without it (s = 0): what says most of each fifth of the samples
           when it is fitted to the others

Where the layer is good already the result is that layer, as sure as the samples show it to be right; where it is not,
the samples speak for themselves. Both are linear in u, and so is what comes out.

The fits of all fifths, beside the layer and without it, are found at once. The best s takes from V its part along D, so
that the term is λ/2 ‖PV‖², P across D. The second derivative is nowhere above ½ E[uuᵀ] + λP, for every class (Böhning
1992): steps by the inverse of that, with Nesterov's momentum, cannot overshoot and need no search.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDS = 5
DECAYS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # from strong to weak: each fit begins where the one before ended
ITERATIONS = 60
LEAST = 1e-9  # of a curvature: what no sample shows stays where it is


def fit_near(v: Tensor, y: Tensor, weight: Tensor, bias: Tensor, randomness: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer fitted to features v (N, d) and labels y (N,), near these."""
    if len(y) < 2:  # nothing could be left out
        return weight.detach().clone(), bias.detach().clone()
    v, old = v.detach().double(), weight.detach().double()
    mean, deviation = v.mean(0), v.std(0, correction=0)
    unit = torch.where(deviation > 1e-6 * deviation.max(), 1 / deviation, 0.0)  # what is constant says nothing
    u = functional.pad((v - mean) * unit, (0, 1), value=1.0)  # the last of them for b
    along = functional.pad(functional.normalize((old * deviation).flatten(), dim=0).view_as(old), (0, 1))
    along = torch.stack([along, torch.zeros_like(along)])  # beside the layer that is there, and without it
    folds = min(FOLDS, len(y))
    fold = (torch.randperm(len(y), generator=randomness) % folds).to(y.device)
    apart = functional.one_hot(fold, folds).T.bool().repeat_interleave(2, 0)
    error = torch.stack(
        [(_cross_entropy(u, y, fit) * apart).sum(1) for fit in _fits(u, y, ~apart, along.repeat(folds, 1, 1))]
    )
    decay, which = divmod(int(error.view(len(DECAYS), folds, 2).sum(1).argmin()), 2)
    (fit,) = next(islice(_fits(u, y, torch.ones_like(apart[:1]), along[which : which + 1]), decay, None))
    new_weight = fit[:, :-1] * unit
    return new_weight.to(weight), (fit[:, -1] - new_weight @ mean).to(bias)


def _logits(u: Tensor, fit: Tensor) -> Tensor:
    """What each of the fits (K, C, d) says of the samples: (K, N, C)."""
    return u @ fit.mT


def _cross_entropy(u: Tensor, y: Tensor, fit: Tensor) -> Tensor:
    """Of every sample under each of the fits, (K, N)."""
    return functional.cross_entropy(_logits(u, fit).mT, y.expand(len(fit), -1), reduction="none")


def _fits(u: Tensor, y: Tensor, seen: Tensor, along: Tensor) -> Iterator[Tensor]:
    """For each of DECAYS the fits (K, C, d) to the samples that each has seen (K, N), P across `along` (K, C, d)."""
    share = seen / seen.sum(1, keepdim=True)
    seconds = torch.stack([u[which].mT @ u[which] / which.sum() for which in seen])  # E[uuᵀ]
    free = torch.ones_like(u[0])
    free[-1] = 0  # b costs nothing
    classes = along.shape[1]
    true = (functional.one_hot(y, classes) * len(y) + 1).to(u) / (len(y) + classes)
    fit = torch.zeros_like(along)
    for decay in DECAYS:
        inverse = torch.linalg.inv(seconds / 2 + torch.diag(decay * free + LEAST))
        pulled = along @ inverse
        loose = decay / (1 - decay * _inner(along, pulled)).clamp_min(LEAST)
        ahead, momentum = fit, torch.ones_like(seen[:, :1, None], dtype=u.dtype)
        for _ in range(ITERATIONS):
            wrong = (_logits(u, ahead).softmax(2) - true) * share[:, :, None]
            across = (ahead - _inner(along, ahead) * along) * free
            step = (wrong.mT @ u + decay * across) @ inverse
            step = step + loose * _inner(along, step) * pulled
            new = ahead - step
            back = _inner(step, new - fit) > 0  # the momentum leads uphill: begin anew
            momentum = torch.where(back, 1.0, momentum)
            after = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            ahead = new + torch.where(back, 0.0, (momentum - 1) / after) * (new - fit)
            fit, momentum = new, after
        yield fit


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each pair, (K, 1, 1)."""
    return (a * b).sum((1, 2), keepdim=True)
