"""Exponential moving average (EMA) of a classifier's weights."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from metalabelnet.core.tensor_state import TensorState

if TYPE_CHECKING:
    from torch import nn


class EMA:
    """The average θ̃ ← kθ̃ + (1 − k)θ, updated after step t = 1, 2, …, with decay k = min(max_decay, (1 + t)/(10 + t)).

    The average covers about the last tenth of the steps so far, at most 1/(1 − max_decay) steps, so that short and long
    runs can use the same setting. With max_decay = 0 it equals the classifier. BatchNorm's statistics are averaged like
    the weights. The averaged network is always in eval mode.
    """

    def __init__(self, net: nn.Module, max_decay: float) -> None:
        self.net = copy.deepcopy(net).requires_grad_(requires_grad=False).eval()
        self.max_decay = max_decay
        first = next(self.net.parameters())
        self.state = TensorState(steps=torch.zeros((), dtype=first.dtype, device=first.device))

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        """Update the average after a step of the classifier."""
        t = self.state["steps"].add_(1)
        decay = ((1 + t) / (10 + t)).clamp_max(self.max_decay)
        averaged, current = ([*n.parameters(), *n.buffers()] for n in (self.net, net))
        pairs = list(zip(averaged, current, strict=True))
        averages, values = map(list, zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True))
        torch._foreach_mul_(averages, decay)
        torch._foreach_add_(averages, torch._foreach_mul(values, 1 - decay))  # noqa: SLF001 (as torch.optim does)
        for counter, value in pairs:
            if not counter.is_floating_point():
                counter.copy_(value)
