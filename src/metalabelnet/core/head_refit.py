"""Head refit: refit the last layer on a few clean labels, regularized toward the present layer.

    u      the features, standardized to mean 0 and standard deviation 1 over the labeled samples
    D      the weight of the present layer, in the coordinates u
    V, b   minimize the mean cross-entropy of V u + b, plus λ/2 ‖V − sD‖², minimized over s too; the one-hot labels are
           smoothed: 1/(N + C) for every class, N/(N + C) more for the label, so that a small sample without errors
           does not give certain predictions
    λ      one of WEIGHT_DECAYS, with regularization toward the present layer or toward zero (s = 0): the pair with the
           least cross-validated cross-entropy (five folds)

If the present layer is good, the result is a multiple of that layer, scaled to the confidence that the samples support.
If it is not, the result is fitted to the samples. Both are linear in u, and so is the result.

All folds, with both kinds of regularization, are fitted in one batch. The optimal s removes the component of V along D,
so the penalty is λ/2 ‖PV‖² with P the projection orthogonal to D. The Hessian is bounded by ½ E[uuᵀ] + λP for every
class (Böhning 1992, https://doi.org/10.1007/BF00048682): steps preconditioned by the inverse of this bound, with
Nesterov momentum, converge without a line search.
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
WEIGHT_DECAYS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # descending: each fit starts from the previous one
ITERATIONS = 60
MIN_CURVATURE = 1e-9  # keeps directions without any sample at their start


def refit_head(v: Tensor, y: Tensor, weight: Tensor, bias: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the last layer refitted to features v (N, d) and labels y (N,).

    `weight` and `bias` are those of the present layer; the generator assigns samples to folds.
    """
    if len(y) < 2:  # no sample can be held out
        return weight.detach().clone(), bias.detach().clone()
    v, old = v.detach().double(), weight.detach().double()
    mean, std = v.mean(0), v.std(0, correction=0)
    inverse_std = torch.where(std > 1e-6 * std.max(), 1 / std, 0.0)  # constant features are dropped
    u = functional.pad((v - mean) * inverse_std, (0, 1), value=1.0)  # the last column is for b
    direction = functional.pad(functional.normalize((old * std).flatten(), dim=0).view_as(old), (0, 1))
    directions = torch.stack([direction, torch.zeros_like(direction)])  # toward the present layer, toward zero
    folds = min(FOLDS, len(y))
    fold = (torch.randperm(len(y), generator=generator) % folds).to(y.device)
    held_out = functional.one_hot(fold, folds).T.bool().repeat_interleave(2, 0)
    error = torch.stack(
        [
            (_cross_entropy(u, y, fit) * held_out).sum(1)
            for fit in _fits(u, y, ~held_out, directions.repeat(folds, 1, 1))
        ]
    )
    decay, kind = divmod(int(error.view(len(WEIGHT_DECAYS), folds, 2).sum(1).argmin()), 2)
    (fit,) = next(islice(_fits(u, y, torch.ones_like(held_out[:1]), directions[kind : kind + 1]), decay, None))
    new_weight = fit[:, :-1] * inverse_std
    return new_weight.to(weight), (fit[:, -1] - new_weight @ mean).to(bias)


def _logits(u: Tensor, fit: Tensor) -> Tensor:
    """Return the logits (K, N, C) of K fits (K, C, d)."""
    return u @ fit.mT


def _cross_entropy(u: Tensor, y: Tensor, fit: Tensor) -> Tensor:
    """Return the cross-entropy (K, N) of every sample under each fit."""
    return functional.cross_entropy(_logits(u, fit).mT, y.expand(len(fit), -1), reduction="none")


def _fits(u: Tensor, y: Tensor, included: Tensor, directions: Tensor) -> Iterator[Tensor]:
    """Yield, for each of WEIGHT_DECAYS, the fits (K, C, d) to the included samples (K, N).

    P is the projection orthogonal to `directions` (K, C, d).
    """
    sample_weight = included / included.sum(1, keepdim=True)
    second_moments = torch.stack([u[mask].mT @ u[mask] / mask.sum() for mask in included])  # E[uuᵀ]
    penalized = torch.ones_like(u[0])
    penalized[-1] = 0  # b is not regularized
    classes = directions.shape[1]
    target = (functional.one_hot(y, classes) * len(y) + 1).to(u) / (len(y) + classes)
    fit = torch.zeros_like(directions)
    for decay in WEIGHT_DECAYS:
        inverse = torch.linalg.inv(second_moments / 2 + torch.diag(decay * penalized + MIN_CURVATURE))
        inverse_direction = directions @ inverse
        # Sherman-Morrison: λP = λI − λ D Dᵀ is a rank-one update of the inverted matrix.
        correction = decay / (1 - decay * _inner(directions, inverse_direction)).clamp_min(MIN_CURVATURE)
        ahead, momentum = fit, torch.ones_like(included[:, :1, None], dtype=u.dtype)
        for _ in range(ITERATIONS):
            residual = (_logits(u, ahead).softmax(2) - target) * sample_weight[:, :, None]
            projected = (ahead - _inner(directions, ahead) * directions) * penalized
            step = (residual.mT @ u + decay * projected) @ inverse
            step = step + correction * _inner(directions, step) * inverse_direction
            new = ahead - step
            uphill = _inner(step, new - fit) > 0  # restart the momentum
            momentum = torch.where(uphill, 1.0, momentum)
            next_momentum = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            ahead = new + torch.where(uphill, 0.0, (momentum - 1) / next_momentum) * (new - fit)
            fit, momentum = new, next_momentum
        yield fit


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each pair, (K, 1, 1)."""
    return (a * b).sum((1, 2), keepdim=True)
