"""The average of a classifier over its steps."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from metalabelnet.core.forward_pass import precision
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.nets.head import read_and_given

if TYPE_CHECKING:
    from torch import Tensor, nn


class EMA:
    """θ̃ ← kθ̃ + (1 − k)θ after every step t = 1, 2, …, with k = min(most, (1 + t)/(10 + t)).

    It looks back over a tenth of the steps so far, or over 1/(1 − most) of them if that is fewer: short runs and long
    ones need no number of their own. With most = 0 it is the classifier itself. BatchNorm's statistics are
    averaged like the weights; the network is always in eval mode.
    """

    def __init__(self, net: nn.Module, head: str, most: float) -> None:
        self.net = copy.deepcopy(net).requires_grad_(requires_grad=False).eval()
        self.head, self.most = head, most
        first = next(self.net.parameters())
        self.memory = TensorState(steps=torch.zeros((), dtype=first.dtype, device=first.device))

    @torch.no_grad()
    def ask(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of x: what the last layer reads, and what it gives."""
        with precision():
            v, logits = read_and_given(self.net, self.head, x)
        return v.to(x.dtype), logits.to(x.dtype)

    @torch.no_grad()
    def follow(self, net: nn.Module) -> None:
        """Take the classifier's last step in."""
        t = self.memory["steps"].add_(1)
        keep = ((1 + t) / (10 + t)).clamp_max(self.most)
        slow, fast = ([*n.parameters(), *n.buffers()] for n in (self.net, net))
        pairs = list(zip(slow, fast, strict=True))
        ours, theirs = map(list, zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True))
        torch._foreach_mul_(ours, keep)
        torch._foreach_add_(ours, torch._foreach_mul(theirs, 1 - keep))  # noqa: SLF001 (as torch.optim does)
        for count, new in pairs:
            if not count.is_floating_point():
                count.copy_(new)
