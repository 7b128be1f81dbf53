"""A last layer fitted to labels in closed form, and what it says of a sample whose own label it has not seen.

    z          features, each with mean 0 and deviation 1 over the n labeled samples
    W, b       the least of (1/n) Σ_i ‖W z_i + b − e(y_i)‖² + λ ‖W‖², e(y) the one-hot vector of a label
    h_i        1/n + z_iᵀ (ZᵀZ/n + λ)⁻¹ z_i / n
    f(x)       W z + b
    f₋ᵢ(x_i)   (f(x_i) − h_i e(y_i))/(1 − h_i): what the fit without sample i says of it, exactly
    λ          the least of V(λ) = (1/n) Σ_i ‖f(x_i) − e(y_i)‖² / (1 − mean h)² (Golub, Heath and Wahba 1979)
    logits     f/σ², σ² = V/C: with residuals of variance σ² the log-likelihood of e(k) is f_k/σ² and a constant

Only sums over samples are kept, so that they need not be in memory together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

DECAYS = tuple(10 ** (k / 2) for k in range(-6, 3))  # times the mean eigenvalue of ZᵀZ/n
LEAST = 1e-3  # for σ², which is 0 where the features tell everything


class Moments:
    """Sums over labeled samples: Σ 1, Σ v, Σ v vᵀ, Σ e(y), Σ v e(y)ᵀ, in double precision."""

    def __init__(self, width: int, classes: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.count, self.classes = 0, classes
        self.v, self.vv, self.e, self.ve = zeros(width), zeros(width, width), zeros(classes), zeros(width, classes)

    def add(self, v: Tensor, y: Tensor) -> None:
        """Take in features (N, d) and labels (N,); those without a label (−1) have no part."""
        v, y = v[y >= 0].double(), y[y >= 0]
        e = functional.one_hot(y, self.classes).double()
        self.count += len(y)
        self.v += v.sum(0)
        self.vv += v.T @ v
        self.e += e.sum(0)
        self.ve += v.T @ e

    def fit(self) -> Head:
        """The layer for what was taken in, two samples at least."""
        n, mean, prior = self.count, self.v / self.count, self.e / self.count
        covariance = self.vv / n - mean[:, None] * mean
        deviation = covariance.diagonal().clamp_min(0).sqrt()
        unit = torch.where(deviation > 1e-6 * deviation.max(), 1 / deviation, 0.0)  # what is constant says nothing
        values, vectors = torch.linalg.eigh(covariance * unit[:, None] * unit)
        values = values.clamp_min(0)
        concurrent = vectors.T @ (unit[:, None] * (self.ve / n - mean[:, None] * prior))  # Vᵀ Zᵀ (E − prior)/n
        total = float((prior * (1 - prior)).sum())

        def criterion(decay: float) -> float:
            inverse = 1 / (values + decay)
            error = total - float(((2 * inverse - values * inverse**2)[:, None] * concurrent**2).sum())
            return error / (1 - (1 + float((values * inverse).sum())) / n) ** 2

        size = float(values.mean()) or 1.0
        decay = min((size * part for part in DECAYS), key=criterion)
        inverse = 1 / (values + decay)
        return Head(
            samples=n,
            mean=mean,
            turn=unit[:, None] * vectors,
            spread=inverse,
            weight=inverse[:, None] * concurrent,
            bias=prior,
            variance=max(criterion(decay) / self.classes, LEAST),
        )


class Head(NamedTuple):
    """The fitted layer, in the coordinates Vᵀz in which ZᵀZ is diagonal."""

    samples: int
    mean: Tensor
    turn: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor
    variance: float

    def logits(self, v: Tensor, y: Tensor | None = None) -> Tensor:
        """f(x)/σ²; where labels are given, f₋ᵢ(x_i)/σ² for the samples that have one and were taken in with it."""
        turned = (v.double() - self.mean) @ self.turn
        f = turned @ self.weight + self.bias
        if y is not None:
            h = torch.where(y >= 0, (1 + (turned**2) @ self.spread) / self.samples, 0.0)[:, None]
            e = functional.one_hot(y.clamp_min(0), len(self.bias)).double()
            f = (f - h * e) / (1 - h)
        return f / self.variance
