"""The label net m_φ of MetaLabelNet: maps the features of a sample to its soft label.

References
----------
.. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
   https://arxiv.org/abs/2103.10869
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.errors import unknown_name_error

LabelNetKind = Literal["single-layer", "mlp", "mlp-batchnorm", "mlp-batchnorm-dropout"]
LABEL_NET_KINDS: tuple[LabelNetKind, ...] = get_args(LabelNetKind)
DROPOUT_PROBABILITY = 0.5


class LabelNet(nn.Module):
    """One linear layer on the features, followed by log-softmax: the label net of the paper.

    φ is initialized as PyTorch initializes a linear layer: weights and biases uniform in ±1/√d for d features. The soft
    labels of the first iterations are therefore close to uniform. Only the meta-gradient trains φ.

    Parameters
    ----------
    features : int
        Number of features d of a sample.
    classes : int
        Number of classes C.
    generator : torch.Generator
        Source of the initial weights.

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.label_net import LabelNet
    >>> m = LabelNet(features=5, classes=3, generator=torch.Generator().manual_seed(0))
    >>> y_hat = m(torch.ones(2, 5)).exp()
    >>> y_hat.shape, torch.allclose(y_hat.sum(1), torch.ones(2))
    (torch.Size([2, 3]), True)
    """

    def __init__(self, features: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform_parameter((classes, features), features, generator)
        self.bias = uniform_parameter((classes,), features, generator)

    def forward(self, v: Tensor) -> Tensor:
        """Return log ŷ, shape (N, C), for the features v, shape (N, d)."""
        return functional.log_softmax(functional.linear(v, self.weight, self.bias), dim=1)


class LabelMLP(nn.Module):
    """A label net with one hidden layer and ReLU: the alternatives that the paper compares with the single layer.

    The paper names three variants (plain, with BatchNorm, with BatchNorm and dropout) without sizes. Here the hidden
    layer has as many units as there are features, BatchNorm precedes the ReLU, and dropout (probability ½) follows it.

    In training, BatchNorm uses the statistics of the batch and dropout is active. For the soft labels of the whole
    training set, BatchNorm uses the running statistics and dropout is off. `metalabelnet.core.algorithm` lists the mode
    of every pass.

    Parameters
    ----------
    features : int
        Number of features d of a sample, and of hidden units.
    classes : int
        Number of classes C.
    generator : torch.Generator
        Source of the initial weights.
    batchnorm : bool, default False
        Whether BatchNorm precedes the ReLU.
    dropout : bool, default False
        Whether dropout follows the ReLU.
    """

    def __init__(
        self, features: int, classes: int, generator: torch.Generator, *, batchnorm: bool = False, dropout: bool = False
    ) -> None:
        super().__init__()
        self.hidden_weight = uniform_parameter((features, features), features, generator)
        # BatchNorm cancels a bias before it, and has its own.
        self.hidden_bias = None if batchnorm else uniform_parameter((features,), features, generator)
        self.norm = nn.BatchNorm1d(features) if batchnorm else nn.Identity()
        self.dropout = nn.Dropout(DROPOUT_PROBABILITY) if dropout else nn.Identity()
        self.last = LabelNet(features, classes, generator)

    def forward(self, v: Tensor) -> Tensor:
        """Return log ŷ, shape (N, C), for the features v, shape (N, d)."""
        hidden = functional.relu(self.norm(functional.linear(v, self.hidden_weight, self.hidden_bias)))
        log_y_hat: Tensor = self.last(self.dropout(hidden))
        return log_y_hat


def make_label_net(kind: LabelNetKind, features: int, classes: int, generator: torch.Generator) -> nn.Module:
    """Return a new label net.

    Parameters
    ----------
    kind : {"single-layer", "mlp", "mlp-batchnorm", "mlp-batchnorm-dropout"}
        "single-layer" is the paper's choice.
    features : int
        Number of features of a sample.
    classes : int
        Number of classes.
    generator : torch.Generator
        Source of the initial weights.

    Returns
    -------
    nn.Module
        Maps features of shape (N, features) to log ŷ of shape (N, classes).

    Raises
    ------
    InputError
        If there is no such kind.

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.label_net import make_label_net
    >>> type(make_label_net("mlp", 5, 3, torch.Generator().manual_seed(0))).__name__
    'LabelMLP'
    """
    if kind not in LABEL_NET_KINDS:
        raise unknown_name_error("label net", kind, LABEL_NET_KINDS)
    if kind == "single-layer":
        return LabelNet(features, classes, generator)
    return LabelMLP(features, classes, generator, batchnorm="batchnorm" in kind, dropout="dropout" in kind)


def uniform_parameter(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> nn.Parameter:
    """Return weights or biases of a linear layer, uniform in ±1/√fan_in.

    PyTorch's default initialization of `nn.Linear`, but drawn from a given generator instead of the global one.
    """
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))
