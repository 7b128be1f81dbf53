"""The weight net V of Meta-Weight-Net: maps the loss of a sample to its weight.

References
----------
.. [1] J. Shu et al., "Meta-Weight-Net: Learning an Explicit Mapping For Sample Weighting", NeurIPS 2019,
   https://arxiv.org/abs/1902.07379
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.label_net import uniform_parameter


class WeightNet(nn.Module):
    """A network of one input, one hidden layer with ReLU (100 units in the paper), and one sigmoid output.

    Its only input is the loss of a sample. Whether large losses get small weights (label noise) or large ones (rare
    classes) is learned. It is initialized as PyTorch initializes linear layers, uniform in ±1/√fan_in, from the given
    generator; the weights of the first iterations are therefore close to ½.
    """

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden_weight = uniform_parameter((hidden, 1), 1, generator)
        self.hidden_bias = uniform_parameter((hidden,), 1, generator)
        self.weight = uniform_parameter((1, hidden), hidden, generator)
        self.bias = uniform_parameter((1,), hidden, generator)

    def forward(self, losses: Tensor) -> Tensor:
        """Return a weight in (0, 1) for each loss."""
        hidden = functional.relu(functional.linear(losses[:, None], self.hidden_weight, self.hidden_bias))
        return functional.linear(hidden, self.weight, self.bias).sigmoid()[:, 0]
