"""Temperature scaling: softmax(s/t), with the temperature t fitted on samples with known true labels.

It keeps the order of the classes, so no prediction changes.

References
----------
.. [1] C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metalabelnet.core.top_classes import MAX_VALUES_PER_CHUNK_ON_CPU

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
SEARCH_STEPS = 24  # of golden-section search; each shrinks the interval by 38 %, which gives ln t within 1e-4
MAX_LOGITS_ON_CPU = 1 << 19  # below this size, synchronizing with a GPU in every step costs more than the computation


class FittedTemperature(NamedTuple):
    """The temperature t, and the mean cross-entropy on the samples it was fitted on."""

    temperature: float
    loss: float


def fit_temperature(logits: Tensor, labels: Tensor) -> FittedTemperature:
    """Return the temperature that maximizes the likelihood of the labels, from logits or log-probabilities.

    One pseudo-sample with a uniform label and average logits is added to the n samples, with weight 1/(n + 1).
    Otherwise a network that classifies all of a few samples correctly would get the minimum temperature. The returned
    loss is that of the n samples alone.

    The loss is convex in 1/t and therefore has a single minimum in t, which golden-section search finds between 1/20
    and 20.
    """
    s = logits.detach().double()
    if s.numel() <= MAX_LOGITS_ON_CPU:
        s, labels = s.cpu(), labels.cpu()
    n = len(s)
    s = s - s.max(1, keepdim=True).values
    at_label, mean = s.gather(1, labels[:, None]).mean(), s.mean()
    # Fewer passes over s than log_softmax, and on a CPU blocks of rows that stay in its cache.
    rows = max(1, MAX_VALUES_PER_CHUNK_ON_CPU // s.shape[1]) if s.device.type == "cpu" else max(1, n)
    blocks, z = torch.split(s, rows), s.new_empty(n)
    scaled = torch.empty_like(blocks[0])  # allocated once

    def losses(t: float) -> tuple[float, float]:
        for block, sums in zip(blocks, torch.split(z, rows), strict=True):
            torch.sum(torch.mul(block, 1 / t, out=scaled[: len(block)]).exp_(), 1, out=sums)
        log_z = z.log().mean()
        nll, mean_log_p = log_z - at_label / t, mean / t - log_z
        plain, regularized = torch.stack([nll, (n * nll - mean_log_p) / (n + 1)]).tolist()
        return plain, regularized

    low, high, golden = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE), (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = losses(math.exp(left))[1], losses(math.exp(right))[1]
    for _ in range(SEARCH_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = losses(math.exp(left))[1]
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = losses(math.exp(right))[1]
    t = math.exp((low + high) / 2)
    return FittedTemperature(t, losses(t)[0])


def softmax_at_temperature(logits: Tensor, t: float) -> Tensor:
    """Return softmax(s/t). For log-probabilities log p it is p^(1/t), normalized."""
    return torch.softmax(logits / t, dim=1)
