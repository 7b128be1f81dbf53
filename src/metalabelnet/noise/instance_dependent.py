"""Instance-dependent noise: each sample has its own flip rate and its own distribution of wrong labels.

    q_i ~ N(rate, 0.1²) truncated to [0, 1]      the flip rate of sample i
    W_c ~ N(0, 1)^(features × C)                 a projection for each true class c
    p_i = softmax over j ≠ y_i of (x_i W_y)_j    the wrong labels of sample i, of true class y
    P(given = j) = q_i p_ij for j ≠ y_i, and 1 − q_i for j = y_i

x_i are the values of the sample as they are stored, pixels from 0 to 255 for images, as in the authors' public code.
The products are then so large that p_i is nearly one class: similar samples of a class are mislabeled alike. Truncation
raises the mean of q where the rate is near 0: to 0.10 for a rate of 0.05; by less than 0.001 for rates from 0.28 on.

X. Xia et al., "Part-dependent Label Noise: Towards Instance-dependent Label Noise", NeurIPS 2020, algorithm 2,
https://arxiv.org/abs/2006.07836
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.noise.spec import check_classes, check_rate

if TYPE_CHECKING:
    from collections.abc import Callable

FLIP_RATE_STD = 0.1
CHUNK_VALUES = 1 << 24  # values of samples that are converted to float64 at once


def instance_dependent_noise(
    true: Tensor, read_samples: Callable[[Tensor], Tensor], classes: int, rate: float, generator: torch.Generator
) -> Tensor:
    """Return labels with instance-dependent noise; `read_samples` returns the samples at the given positions."""
    check_classes(classes)
    check_rate(rate)
    rates = draw_flip_rates(len(true), rate, generator)
    flipped, position = torch.rand(2, len(true), generator=generator, dtype=torch.float64)
    given = true.clone()
    for label in range(classes):
        members = ((true == label) & (flipped < rates)).nonzero()[:, 0]
        projection = None
        for rows in members.split(_chunk_rows(read_samples, members)):
            x = read_samples(rows).flatten(1).double()
            if projection is None:
                projection = torch.randn(x.shape[1], classes, generator=generator, dtype=torch.float64)
            given[rows] = draw_labels(wrong_label_probabilities(x, label, projection), position[rows])
    return given


def draw_flip_rates(count: int, rate: float, generator: torch.Generator) -> Tensor:
    """Return draws from the normal distribution around the rate, truncated to [0, 1], by its inverse."""
    bounds = (torch.tensor([0.0, 1.0], dtype=torch.float64) - rate) / FLIP_RATE_STD
    low, high = torch.special.ndtr(bounds)
    uniform = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    rates: Tensor = rate + FLIP_RATE_STD * torch.special.ndtri(uniform)
    return rates.clamp(0, 1)


def wrong_label_probabilities(x: Tensor, label: int, projection: Tensor) -> Tensor:
    """Return softmax(x W) over the classes other than the label, one row for each sample."""
    scores = x @ projection
    scores[:, label] = -torch.inf
    return scores.softmax(1)


def draw_labels(probabilities: Tensor, position: Tensor) -> Tensor:
    """Return for each row the first class whose cumulative probability exceeds the row's position in [0, 1)."""
    cumulative = probabilities.cumsum(1)
    return (cumulative <= position[:, None] * cumulative[:, -1:]).sum(1)


def _chunk_rows(read_samples: Callable[[Tensor], Tensor], members: Tensor) -> int:
    return max(1, CHUNK_VALUES // max(1, read_samples(members[:1]).numel())) if len(members) else 1
