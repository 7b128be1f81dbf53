"""An ensemble of networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Averages the probabilities of several networks."""

    def __init__(self, *nets: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.train(nets[0].training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of the mean probabilities."""
        logits = torch.stack([net(x) for net in self.nets])
        return logits.log_softmax(2).logsumexp(0) - math.log(len(self.nets))
