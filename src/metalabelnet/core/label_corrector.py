"""The label correction network of MLC: maps the features of a sample and its given label to a soft label.

References
----------
.. [1] G. Zheng, A. H. Awadallah and S. Dumais, "Meta Label Correction for Noisy Label Learning", AAAI 2021,
   https://arxiv.org/abs/1911.03809
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LabelCorrector(nn.Module):
    """An embedding of the given label beside the features, two hidden layers with tanh, and log-softmax.

    Initialized as in the authors' code: Xavier uniform for the embedding, Xavier normal for the weights, zero biases.

    Parameters
    ----------
    features : int
        Number of features of a sample.
    classes : int
        Number of classes C.
    embedding : int
        Size of the embedding of a given label.
    hidden : int
        Units of each hidden layer.
    generator : torch.Generator
        Source of the initial weights.

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.label_corrector import LabelCorrector
    >>> corrector = LabelCorrector(5, 3, embedding=4, hidden=8, generator=torch.Generator().manual_seed(0))
    >>> y_hat = corrector(torch.ones(2, 5), torch.tensor([0, 2])).exp()
    >>> y_hat.shape, torch.allclose(y_hat.sum(1), torch.ones(2))
    (torch.Size([2, 3]), True)
    """

    def __init__(self, features: int, classes: int, *, embedding: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()

        def weight(outputs: int, inputs: int) -> nn.Parameter:
            # PyTorch's normal float32 numbers depend on the CPU's vector instructions, float64 numbers do not.
            drawn = nn.init.xavier_normal_(torch.empty(outputs, inputs, dtype=torch.float64), generator=generator)
            return nn.Parameter(drawn.to(torch.get_default_dtype()))

        self.embedding = nn.Parameter(nn.init.xavier_uniform_(torch.empty(classes, embedding), generator=generator))
        self.first_weight, self.first_bias = weight(hidden, features + embedding), nn.Parameter(torch.zeros(hidden))
        self.second_weight, self.second_bias = weight(hidden, hidden), nn.Parameter(torch.zeros(hidden))
        self.last_weight, self.last_bias = weight(classes, hidden), nn.Parameter(torch.zeros(classes))

    def forward(self, v: Tensor, given: Tensor) -> Tensor:
        """Return log ŷ, shape (N, C), for features v, shape (N, d), and given labels, shape (N,)."""
        inputs = torch.cat([v, self.embedding[given]], 1)
        hidden = functional.linear(inputs, self.first_weight, self.first_bias).tanh()
        hidden = functional.linear(hidden, self.second_weight, self.second_bias).tanh()
        return functional.log_softmax(functional.linear(hidden, self.last_weight, self.last_bias), dim=1)
