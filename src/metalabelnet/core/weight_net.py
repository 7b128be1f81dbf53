"""The weight net V of Meta-Weight-Net: from the loss of a sample to its weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.linear_init import uniform


class WeightNet(nn.Module):
    """V: 1–100–1 with ReLU between and sigmoid at the end (Shu et al. 2019).

    A function of one number, so that it cannot tell samples apart but by how hard they are. Which way it goes
    is learned: large losses down (noise), or up (rare classes). It starts as PyTorch starts any linear layer, uniform
    in ±1/√inputs, drawn from the generator given; the weights of the first iterations are therefore near ½.
    """

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden_weight, self.hidden_bias = (uniform((hidden, 1), 1, generator), uniform((hidden,), 1, generator))
        self.weight, self.bias = (uniform((1, hidden), hidden, generator), uniform((1,), hidden, generator))

    def forward(self, losses: Tensor) -> Tensor:
        """A weight in (0, 1) for each loss."""
        hidden = functional.relu(functional.linear(losses[:, None], self.hidden_weight, self.hidden_bias))
        return functional.linear(hidden, self.weight, self.bias).sigmoid()[:, 0]
