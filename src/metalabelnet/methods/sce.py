"""SCE, symmetric cross-entropy (Wang et al. 2019, https://arxiv.org/abs/1908.06112).

    CE  = −log p_y
    RCE = −Σ_j p_j log y_j, with log 0 := A
    θ ← θ − SGD(∇θ (1/N) Σ_i (a·CE_i + b·RCE_i))

    p     the prediction softmax(f_θ(x))
    y     the given label, one-hot in RCE
    A     a negative constant, log(zero)
    a, b  weights (α and β in the paper)

RCE is bounded, so a wrong label has a bounded effect. The common schedule is the paper's for CIFAR-10: 8-layer CNN, 120
epochs, learning rate divided by 10 after epochs 40 and 80. With b = 1 and A = log 1e-4 RCE is up to 9.2 per sample, so
gradients are large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.run_options import CIFAR10_SCHEDULE

if TYPE_CHECKING:
    from metalabelnet.data.batches import Batch


def reverse_cross_entropy(logits: Tensor, labels: Tensor, A: float) -> Tensor:
    """Return −Σ_j p_j log y_j of every sample, with log 0 := A < 0. It equals −A (1 − p_y).

    It tends to 0 as p_y → 1 and is at most −A, however confident the prediction. It is the mean absolute error times
    −A/2.
    """
    log_p_y = functional.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return A * torch.expm1(log_p_y)


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, a: float, b: float, A: float) -> Tensor:
    """Return a·CE + b·RCE of every sample."""
    return a * cross_entropy(logits, labels) + b * reverse_cross_entropy(logits, labels, A)


@dataclass(frozen=True, kw_only=True)
class SCESettings:
    """Settings with the paper's values for CIFAR-10 (for CIFAR-100: a=6, b=0.1)."""

    a: float = field(default=0.1, metadata={"help": "a, weight of cross-entropy (6 for CIFAR-100)"})
    b: float = field(default=1.0, metadata={"help": "b, weight of reverse cross-entropy (0.1 for CIFAR-100)"})
    zero: float = field(default=1e-4, metadata={"help": "value that replaces 0 in a one-hot label: A = log(zero)"})

    def __post_init__(self) -> None:
        if not 0 < self.zero < 1:
            raise InputError(f"zero={self.zero} is out of range: give a number between 0 and 1, such as 1e-4")


class SCE(Method):
    """Minimize a·CE + b·RCE over the labeled rows."""

    traits = MethodTraits(
        summary="cross-entropy plus reverse cross-entropy (label and prediction exchanged)",
        reference="Wang et al. 2019",
        paper_url="https://arxiv.org/abs/1908.06112",
        traceable=True,
        own_recipe={**CIFAR10_SCHEDULE, "settings": {"a": 0.1, "b": 1.0}},
    )
    Settings: ClassVar[type] = SCESettings

    settings: SCESettings

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the symmetric loss."""
        s = self.settings

        def loss(logits: Tensor, given: Tensor) -> Tensor:
            return symmetric_cross_entropy(logits, given, s.a, s.b, math.log(s.zero)).mean()

        return self.sgd_step(loss, batch.views, (batch.given,), batch.seed)
