"""MixUp: mixtures of pairs of samples (Zhang et al. 2018, https://arxiv.org/abs/1710.09412).

    x' = λ x + (1 − λ) x_π,   λ ~ Beta(α, α)

with one share λ and one permutation π of the batch per step. As for augmentation, all random numbers are drawn first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

SHARE_LEVELS = 1 << 16  # shares are multiples of 1/65536, so that a batch plan is int64 throughout


def draw_mixup(steps: int, size: int, alpha: float, seed: int) -> Tensor:
    """Draw the random numbers of `steps` batches: (steps, 2, size) with the partner and the share of each sample."""
    random = np.random.default_rng(seed)
    partners = np.stack([random.permutation(size) for _ in range(steps)])
    shares = np.rint(random.beta(alpha, alpha, size=(steps, 1)) * SHARE_LEVELS).astype(np.int64)
    return torch.from_numpy(np.stack([partners, np.broadcast_to(shares, partners.shape)], axis=1))


def mixup_share(draws: Tensor, dtype: torch.dtype) -> Tensor:
    """Return λ, a scalar, from the draws (2, size) of one batch."""
    return draws[1, 0].to(dtype) / SHARE_LEVELS
