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

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.calibration import fit_temperature
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Iterator

Head = tuple[Tensor, Tensor]  # weight and bias of a last layer

FOLDS = 5
WEIGHT_DECAYS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # descending: each fit starts from the previous one
ITERATIONS = 60
MIN_CURVATURE = 1e-9  # keeps directions without any sample at their start
MAX_LOGITS_PER_CHUNK = 1 << 27  # of all fits that are held at a time: 1 GiB


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
    held_out = functional.one_hot(fold, folds).T.bool()
    error, fits = [], []
    for fit in _fits(u, y, torch.cat([~held_out, torch.ones_like(held_out[:1])]), directions):
        error.append((_cross_entropy(u, y, fit[:-1]) * held_out[:, None]).sum(2))
        fits.append(fit[-1])  # to all samples
    decay, kind = divmod(int(torch.stack(error).sum(1).argmin()), 2)
    best = fits[decay][kind]
    new_weight = best[:, :-1] * inverse_std
    return new_weight.to(weight), (best[:, -1] - new_weight @ mean).to(bias)


def refit_head_by_fold(v: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: int) -> tuple[list[Head], Tensor]:
    """Refit the last layer without each fold of the samples, for predictions that are not fitted to a sample.

    Returns the layers, and the log-probabilities (N, C) of each sample by the layer that did not see it. Both are
    calibrated, with one temperature.
    """
    folds = min(FOLDS, len(v))
    fold = torch.randperm(len(v), generator=generator(seed, "label net folds")).to(v.device) % folds
    heads, log_r = [], v.new_empty(len(v), len(weight))
    for k in range(folds):
        rest = fold != k
        heads.append(refit_head(v[rest], y[rest], weight, bias, generator(seed, "folds", k)))
        log_r[~rest] = functional.linear(v[~rest], *heads[k]).log_softmax(1)
    temperature = fit_temperature(log_r, y).temperature
    return [(w / temperature, b / temperature) for w, b in heads], (log_r / temperature).log_softmax(1)


def _logits(u: Tensor, fit: Tensor) -> Tensor:
    """Return the logits (N, F, 2, C) of fits (F, 2, C, d), by one matrix product."""
    return (u @ fit.flatten(0, 2).mT).view(len(u), *fit.shape[:3])


def _cross_entropy(u: Tensor, y: Tensor, fit: Tensor) -> Tensor:
    """Return the cross-entropy (F, 2, N) of every sample under each fit (F, 2, C, d)."""
    parts = []
    for rows in _row_chunks(len(u), fit):
        logits = _logits(u[rows], fit).flatten(1, 2).permute(1, 2, 0)
        losses = functional.cross_entropy(logits, y[rows].expand(len(logits), -1), reduction="none")
        parts.append(losses.view(len(fit), 2, -1))
    return torch.cat(parts, 2)


def _row_chunks(rows: int, fit: Tensor) -> list[slice]:
    """Return slices of the samples whose logits under all fits (F, 2, C, d) are held at a time."""
    size = max(1, MAX_LOGITS_PER_CHUNK // fit[..., 0].numel())
    return [slice(start, start + size) for start in range(0, rows, size)]


def _fits(u: Tensor, y: Tensor, included: Tensor, directions: Tensor) -> Iterator[Tensor]:
    """Yield, for each of WEIGHT_DECAYS, the fits (F, 2, C, d) to F subsets of the samples, `included` (F, N).

    P is the projection orthogonal to `directions` (2, C, d).
    """
    sample_weight = (included / included.sum(1, keepdim=True)).mT[:, :, None, None]
    second_moments = torch.stack([u[mask].mT @ u[mask] / mask.sum() for mask in included])  # E[uuᵀ]
    penalized = torch.ones_like(u[0])
    penalized[-1] = 0  # b is not regularized
    classes = directions.shape[1]
    target = (functional.one_hot(y, classes) * len(y) + 1).to(u)[:, None, None] / (len(y) + classes)
    fit = torch.zeros_like(directions).repeat(len(included), 1, 1, 1)
    nesterov = torch.tensor(_momentum(), dtype=u.dtype, device=u.device)
    for decay in WEIGHT_DECAYS:
        inverse = torch.linalg.inv(second_moments / 2 + torch.diag(decay * penalized + MIN_CURVATURE))
        inverse_direction = _multiply(directions.expand_as(fit), inverse)
        # Sherman-Morrison: λP = λI − λ D Dᵀ is a rank-one update of the inverted matrix.
        correction = decay / (1 - decay * _inner(directions, inverse_direction)).clamp_min(MIN_CURVATURE)
        ahead, since_restart = fit, torch.zeros_like(correction, dtype=torch.long)
        for _ in range(ITERATIONS):
            gradient = torch.zeros_like(fit)
            for rows in _row_chunks(len(u), fit):
                residual = (_logits(u[rows], ahead).softmax(3) - target[rows]) * sample_weight[rows]
                gradient += (residual.flatten(1).mT @ u[rows]).view_as(fit)
            projected = (ahead - _inner(directions, ahead) * directions) * penalized
            step = _multiply(gradient + decay * projected, inverse)
            step = step + correction * _inner(directions, step) * inverse_direction
            new = ahead - step
            change = new - fit
            since_restart = since_restart.masked_fill(_inner(step, change) > 0, 0)  # restart where it goes uphill
            ahead = new + nesterov[since_restart] * change
            fit, since_restart = new, since_restart + 1
        yield fit


def _momentum() -> list[float]:
    """Return the factor of Nesterov momentum at each iteration: (t − 1) / t' with t' = (1 + √(1 + 4t²)) / 2."""
    factors, t = [], 1.0
    for _ in range(ITERATIONS):
        t_next = (1 + math.sqrt(1 + 4 * t * t)) / 2
        factors.append((t - 1) / t_next)
        t = t_next
    return factors


def _multiply(fit: Tensor, matrix: Tensor) -> Tensor:
    """Return fits (F, 2, C, d) times the matrix of each subset (F, d, d)."""
    return (fit.flatten(1, 2) @ matrix).view_as(fit)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each pair of fits, (F, 2, 1, 1)."""
    return (a * b).sum((2, 3), keepdim=True)
