"""Parts of MixMatch: sharpening, mixing, and the loss on labeled and unlabeled samples.

References
----------
.. [1] D. Berthelot et al., "MixMatch: A Holistic Approach to Semi-Supervised Learning", NeurIPS 2019,
   https://arxiv.org/abs/1905.02249
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Return the one-hot vectors of labels, zeros for −1. Unlike `functional.one_hot`, it reads nothing on the host."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(dtype)


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """Return p^(1/T), normalized: p for T = 1, one-hot at the largest probability for T → 0."""
    powers = (p / p.amax(1, keepdim=True)) ** (1 / temperature)  # without the division, small T underflows
    return powers / powers.sum(1, keepdim=True)


def mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Return λ x_i + (1 − λ) x_j for every sample i with partner j; λ ≥ ½ keeps it closer to x_i."""
    return share * x + (1 - share) * x[partner]


def draw_shares(count: int, alpha: float, seed: int) -> Tensor:
    """Return max(λ, 1 − λ) for `count` draws of λ ~ Beta(α, α), on the host in double precision."""
    share = torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count))
    return torch.maximum(share, 1 - share)


def labeled_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the cross-entropies −Σ_j t_j log p_j; 0 if all weights are 0."""
    losses = -(targets * functional.log_softmax(logits, dim=1)).sum(1)
    return (weights * losses).sum() / _total(weights)


def unlabeled_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the squared errors (1/C) Σ_j (p_j − t_j)²; 0 if all weights are 0."""
    errors = ((logits.softmax(1) - targets) ** 2).mean(1)
    return (weights * errors).sum() / _total(weights)


def class_balance_loss(p: Tensor) -> Tensor:
    """Return KL(π ‖ p̄) = Σ_c π_c log(π_c / p̄_c) for the uniform π and the mean p̄ of the predictions.

    It is 0 if the mean prediction is uniform, and grows without limit as a class is no longer predicted.
    """
    mean = p.mean(0).clamp_min(torch.finfo(p.dtype).tiny)
    return -(mean * p.shape[1]).log().mean()


def _total(weights: Tensor) -> Tensor:
    """Return the sum of the weights, or 1 if it is 0."""
    total = weights.sum()
    return total + (total == 0)
