"""One number that makes probabilities mean what they say: softmax(s/t), with t fitted on samples whose truth is known.

Temperature scaling (Guo et al. 2017) keeps the order of the classes, so that no prediction changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

LEAST, MOST = 0.05, 20.0
STEPS = 24  # of golden section, each takes 38 % off the interval: ln t is found within 1e-4
FEW = 1 << 19  # logits for which the host is done sooner than it could ask a card so often


class Calibration(NamedTuple):
    """The temperature t, and the mean cross-entropy on the samples it was fitted on."""

    temperature: float
    loss: float


def calibrated(logits: Tensor, labels: Tensor) -> Calibration:
    """The temperature that makes these labels likeliest, from logits or from logarithms of probabilities.

    To the n samples comes one more of which nothing is known, a uniform label on an average sample: a network that
    has all of a few samples right would otherwise be called certain of everything. Its weight is 1/(n + 1), and with
    many samples it does not count. The loss is that of the n samples alone.

    The loss is convex in 1/t and so has one minimum in t, which golden section finds; between 1/20 and 20.
    """
    s = logits.detach().double()
    if s.numel() <= FEW:
        s, labels = s.cpu(), labels.cpu()
    n = len(s)

    def losses(t: float) -> tuple[float, float]:
        log_p = functional.log_softmax(s / t, dim=1)
        known = functional.nll_loss(log_p, labels)
        alone, with_one_more = torch.stack([known, (n * known - log_p.mean()) / (n + 1)]).tolist()
        return alone, with_one_more

    low, high, golden = math.log(LEAST), math.log(MOST), (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = losses(math.exp(left))[1], losses(math.exp(right))[1]
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = losses(math.exp(left))[1]
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = losses(math.exp(right))[1]
    t = math.exp((low + high) / 2)
    return Calibration(t, losses(t)[0])


def at_temperature(logits: Tensor, t: float) -> Tensor:
    """softmax(s/t). From logarithms of probabilities p it is p^(1/t), normalised."""
    return torch.softmax(logits / t, dim=1)
