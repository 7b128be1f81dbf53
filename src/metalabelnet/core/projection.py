"""Projection of features onto the directions of largest variance, by randomized range finding.

    V          (m, d) features, each scaled to standard deviation 1
    Ω          (m, k) Gaussian
    Q          an orthonormal basis of the columns of (VᵀV) Vᵀ Ω, close to the k first principal directions
    R          (k, k) a random rotation
    P          diag(1/std) Q R, (d, k): the projected features are those of V P

R mixes the directions, so that all projected features have about the same variance. A ridge regression that scales its
features to variance 1 would otherwise give all directions the same weight.

References
----------
.. [1] N. Halko, P. G. Martinsson and J. A. Tropp, "Finding structure with randomness", SIAM Review 2011,
   https://arxiv.org/abs/0909.4061
"""

from __future__ import annotations

import torch
from torch import Tensor


def find_projection(v: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return P for features v, (m, d), with k at most m and d. Constant features are left out."""
    centered = v - v.mean(0)
    std = centered.square().mean(0).sqrt()
    scale = torch.where(std > 1e-6 * std.max(), 1 / std, 0.0)
    V = centered * scale

    def gaussian(rows: int) -> Tensor:
        return torch.randn(rows, k, generator=generator, dtype=torch.float64).to(v)

    Q = torch.linalg.qr(V.T @ gaussian(len(V)))[0]
    Q = torch.linalg.qr(V.T @ (V @ Q))[0]
    R = torch.linalg.qr(gaussian(k))[0]
    P: Tensor = scale[:, None] * (Q @ R)
    return P
