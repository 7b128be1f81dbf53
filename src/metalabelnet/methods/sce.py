"""SCE: cross-entropy, and beside it cross-entropy with label and prediction exchanged, which noise cannot lead far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.methods.method import CIFAR10_RECIPE, Method

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from metalabelnet.data.batches import Batch


def reverse_cross_entropy(logits: Tensor, labels: Tensor, A: float) -> Tensor:
    """−Σ_j p_j log y_j with log 0 taken for A < 0, which is −A (1 − p_y) (Wang et al. 2019).

    Zero as p_y → 1 and at most −A: a wrong label costs a bounded amount, however sure the prediction. It is the mean
    absolute error times −A/2.
    """
    log_p_y = functional.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return A * torch.expm1(log_p_y)


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, a: float, b: float, A: float) -> Tensor:
    """a·CE + b·RCE (Wang et al. 2019). Cross-entropy at a = 1, b = 0; reverse cross-entropy at a = 0, b = 1."""
    return a * cross_entropy(logits, labels) + b * reverse_cross_entropy(logits, labels, A)


@dataclass(frozen=True, kw_only=True)
class SCESettings:
    """Settings with the paper's values for CIFAR-10 (CIFAR-100: a 6, b 0.1)."""

    a: float = field(default=0.1, metadata={"help": "weight of cross-entropy; 6 for CIFAR-100"})
    b: float = field(default=1.0, metadata={"help": "weight of reverse cross-entropy; 0.1 for CIFAR-100"})
    zero: float = field(default=1e-4, metadata={"help": "what 0 is taken for in a label: log 0 is A = log(zero)"})

    def __post_init__(self) -> None:
        if not 0 < self.zero < 1:
            raise InputError(f"zero={self.zero}: it stands for 0 in a label; give a number between 0 and 1 like 1e-4")


class SCE(Method):
    """Minimises a·CE + b·RCE over the labeled rows.

    The common recipe is that of the SCE paper on CIFAR-10: the 8-layer CNN, 120 epochs, a tenth of the rate after 40
    and after 80. With b = 1 and A = log 1e-4 the reverse term alone is up to 9.2 an example, so its steps are long.
    """

    summary = "cross-entropy plus cross-entropy with label and prediction exchanged"
    reference = "Wang et al. 2019"
    traceable = True
    Settings: ClassVar[type] = SCESettings
    own: ClassVar[Mapping[str, Any]] = {**CIFAR10_RECIPE, "settings": {"a": 0.1, "b": 1.0}}

    settings: SCESettings

    def step(self, batch: Batch) -> Tensor:
        """A step against the symmetric loss."""
        s = self.settings

        def loss(logits: Tensor) -> Tensor:
            return symmetric_cross_entropy(logits, batch.given, s.a, s.b, math.log(s.zero)).mean()

        return self.minimise(loss, batch.x, batch.seed)
