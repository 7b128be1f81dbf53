"""Several networks that predict as one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """The logarithm of the mean of several networks' probabilities."""

    def __init__(self, *nets: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.train(nets[0].training)

    def forward(self, x: Tensor) -> Tensor:
        """Logits whose softmax is the mean."""
        each = torch.stack([net(x) for net in self.nets])
        return each.log_softmax(2).logsumexp(0) - math.log(len(self.nets))
