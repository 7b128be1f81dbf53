"""MetaLabelNet itself, m_φ: from the features of a sample to its soft label."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LabelNet(nn.Module):
    """One linear layer on the features, then softmax (in logarithms).

    φ starts as PyTorch starts any linear layer, weights and biases uniform in ±1/√d for d features, drawn
    from the generator given. The soft labels of the first iterations are therefore close to uniform; it is
    the meta-gradient alone that shapes them.
    """

    def __init__(self, features: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = features**-0.5
        self.weight = nn.Parameter(torch.empty(classes, features).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(classes).uniform_(-bound, bound, generator=generator))

    def forward(self, v: Tensor) -> Tensor:
        """The logarithm of ŷ for the features v."""
        return functional.log_softmax(functional.linear(v, self.weight, self.bias), dim=1)
