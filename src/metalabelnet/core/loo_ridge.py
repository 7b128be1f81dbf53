"""LOO ridge: ridge regression of one-hot labels on features, with exact leave-one-out predictions in closed form.

    z          the features, standardized to mean 0 and standard deviation 1 over the n labeled samples
    W, b       minimize (1/n) Σ_i ‖W z_i + b − e(y_i)‖² + λ ‖W‖², with e(y) the one-hot vector of a label
    h_i        1/n + z_iᵀ (ZᵀZ/n + λ)⁻¹ z_i / n, the leverage of sample i
    f(x)       W z + b
    f₋ᵢ(x_i)   (f(x_i) − h_i e(y_i))/(1 − h_i): the prediction of the fit without sample i, exactly
    λ          minimizes the generalized cross-validation error V(λ) = (1/n) Σ_i ‖f(x_i) − e(y_i)‖² / (1 − mean h)²
               (Golub, Heath and Wahba 1979, https://doi.org/10.1080/00401706.1979.10489751)
    logits     f/σ² with σ² = V/C: for residuals of variance σ² the log-likelihood of e(k) is f_k/σ² plus a constant

Only sums over samples are stored, so the samples do not have to fit into memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

RELATIVE_DECAYS = tuple(10 ** (k / 2) for k in range(-6, 3))  # λ as multiples of the mean eigenvalue of ZᵀZ/n
MIN_VARIANCE = 1e-3  # of σ², which is 0 if the features determine the labels


class RidgeMoments:
    """Sums over labeled samples: Σ 1, Σ v, Σ v vᵀ, Σ e(y), Σ v e(y)ᵀ, in double precision."""

    def __init__(self, width: int, classes: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.count, self.classes = 0, classes
        self.v, self.vv, self.e, self.ve = zeros(width), zeros(width, width), zeros(classes), zeros(classes, width).T

    def add(self, v: Tensor, y: Tensor) -> None:
        """Add features (N, d) with labels (N,); samples with label −1 are ignored."""
        v, y = v[y >= 0].double(), y[y >= 0]
        self.count += len(y)
        self.v += v.sum(0)
        self.vv += v.T @ v
        if v.device.type == "cpu":  # not on a GPU, which would add in any order
            self.e += torch.bincount(y, minlength=self.classes)
            self.ve.T.index_add_(0, y, v)  # in the layout of a table of classes × features
            return
        e = functional.one_hot(y, self.classes).double()
        self.e += e.sum(0)
        self.ve += v.T @ e

    def fit(self) -> RidgeHead:
        """Return the layer fitted to the added samples, at least two."""
        n, mean, prior = self.count, self.v / self.count, self.e / self.count
        covariance = self.vv / n - mean[:, None] * mean
        std = covariance.diagonal().clamp_min(0).sqrt()
        inverse_std = torch.where(std > 1e-6 * std.max(), 1 / std, 0.0)  # constant features are dropped
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance * inverse_std[:, None] * inverse_std)
        eigenvalues = eigenvalues.clamp_min(0)
        cross_covariance = eigenvectors.T @ (inverse_std[:, None] * (self.ve / n - mean[:, None] * prior))
        label_variance = float((prior * (1 - prior)).sum())

        def gcv_error(decay: float) -> float:
            inverse = 1 / (eigenvalues + decay)
            explained = float(((2 * inverse - eigenvalues * inverse**2)[:, None] * cross_covariance**2).sum())
            return (label_variance - explained) / (1 - (1 + float((eigenvalues * inverse).sum())) / n) ** 2

        scale = float(eigenvalues.mean()) or 1.0
        decay = min((scale * relative for relative in RELATIVE_DECAYS), key=gcv_error)
        inverse = 1 / (eigenvalues + decay)
        return RidgeHead(
            samples=n,
            mean=mean,
            projection=inverse_std[:, None] * eigenvectors,
            inverse=inverse,
            weight=inverse[:, None] * cross_covariance,
            bias=prior,
            variance=max(gcv_error(decay) / self.classes, MIN_VARIANCE),
        )


class RidgeHead(NamedTuple):
    """The fitted layer, in the coordinates Vᵀz in which ZᵀZ is diagonal (V: its eigenvectors)."""

    samples: int
    mean: Tensor
    projection: Tensor
    inverse: Tensor  # the diagonal of (ZᵀZ/n + λ)⁻¹ in these coordinates
    weight: Tensor
    bias: Tensor
    variance: float

    def logits(self, v: Tensor, y: Tensor | None = None) -> Tensor:
        """Return f(x)/σ², or f₋ᵢ(x_i)/σ² for samples with a label in y.

        v  (N, d) features
        y  (N,) the labels that these samples were added with, −1 for samples that were not added
        """
        projected = (v.double() - self.mean) @ self.projection
        f = projected @ self.weight + self.bias
        if y is not None:
            h = torch.where(y >= 0, (1 + (projected**2) @ self.inverse) / self.samples, 0.0)[:, None]
            at_label = y.clamp_min(0)[:, None]
            f = f.scatter(1, at_label, f.gather(1, at_label) - h) / (1 - h)
        return f / self.variance
