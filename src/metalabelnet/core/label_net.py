"""MetaLabelNet itself, m_φ: from the features of a sample to its soft label."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.linear_init import uniform
from metalabelnet.errors import unknown

LabelNetKind = Literal["single-layer", "mlp", "mlp-batchnorm", "mlp-batchnorm-dropout"]
KINDS: tuple[LabelNetKind, ...] = get_args(LabelNetKind)
DROPOUT = 0.5


class LabelNet(nn.Module):
    """One linear layer on the features, then softmax (in logarithms).

    φ starts as PyTorch starts any linear layer, weights and biases uniform in ±1/√d for d features, drawn
    from the generator given. The soft labels of the first iterations are therefore close to uniform; it is
    the meta-gradient alone that shapes them.
    """

    def __init__(self, features: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform((classes, features), features, generator)
        self.bias = uniform((classes,), features, generator)

    def forward(self, v: Tensor) -> Tensor:
        """The logarithm of ŷ for the features v."""
        return functional.log_softmax(functional.linear(v, self.weight, self.bias), dim=1)


class LabelMLP(nn.Module):
    """One hidden layer with ReLU before the last: what the paper tried in place of the single layer.

    The paper names three variants (plain, with BatchNorm, with BatchNorm and dropout) and no sizes. Here the
    hidden layer is as wide as the features, BatchNorm stands before the ReLU, and dropout (½) after it.

    While it learns, BatchNorm uses the statistics of the batch and dropout is on; for the soft labels of the whole
    training set it uses the running statistics, without dropout. See `core.algorithm` for which pass does what.
    """

    def __init__(
        self, features: int, classes: int, generator: torch.Generator, *, batchnorm: bool = False, dropout: bool = False
    ) -> None:
        super().__init__()
        self.hidden_weight = uniform((features, features), features, generator)
        # BatchNorm subtracts a bias before it, and has one of its own.
        self.hidden_bias = None if batchnorm else uniform((features,), features, generator)
        self.norm = nn.BatchNorm1d(features) if batchnorm else nn.Identity()
        self.dropout = nn.Dropout(DROPOUT) if dropout else nn.Identity()
        self.last = LabelNet(features, classes, generator)

    def forward(self, v: Tensor) -> Tensor:
        """The logarithm of ŷ for the features v."""
        hidden = functional.relu(self.norm(functional.linear(v, self.hidden_weight, self.hidden_bias)))
        log_y_hat: Tensor = self.last(self.dropout(hidden))
        return log_y_hat


def make_label_net(kind: LabelNetKind, features: int, classes: int, generator: torch.Generator) -> nn.Module:
    """The label net of that kind, its weights drawn from the generator."""
    if kind not in KINDS:
        raise unknown("label net", kind, KINDS)
    if kind == "single-layer":
        return LabelNet(features, classes, generator)
    return LabelMLP(features, classes, generator, batchnorm="batchnorm" in kind, dropout="dropout" in kind)
