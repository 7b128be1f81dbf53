"""The paper's losses. Each takes logits and gives one number per example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

LossScale = Literal["per-class-mean", "sum"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p_y, the loss of warm-up and of the clean set. Tends to 0 as p_y → 1."""
    return functional.cross_entropy(logits, labels, reduction="none")


def soft_cross_entropy(logits: Tensor, log_soft_labels: Tensor) -> Tensor:
    """−Σ_j ŷ_j log p_j: from the soft label to the prediction. Least where p = ŷ: doubt in ŷ stays doubt in p."""
    return -(log_soft_labels.exp() * functional.log_softmax(logits, dim=1)).sum(1)


def classification_loss(logits: Tensor, log_soft_labels: Tensor) -> Tensor:
    """l_c = KL(p ‖ ŷ) = Σ_j p_j (log p_j − log ŷ_j): from the prediction to the soft label.

    Zero where p = ŷ; −log ŷ_k where p is one-hot at k. The soft labels come as logarithms, so that a
    class the label net has all but ruled out costs what it should and never infinity.
    """
    log_p = functional.log_softmax(logits, dim=1)
    return (log_p.exp() * (log_p - log_soft_labels)).sum(1)


def entropy_loss(logits: Tensor) -> Tensor:
    """l_e = −Σ_j p_j log p_j. Zero for a one-hot prediction, log C for a uniform one."""
    log_p = functional.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(1)


def scale_factor(scale: LossScale, logits: Tensor) -> float:
    """What a sum over classes is multiplied by: 1/C, or 1.

    `sum` takes the paper's equations by the letter; `per-class-mean` divides by the number of classes as
    the authors' code does, and that is what their learning rates belong to.
    """
    return 1.0 if scale == "sum" else 1.0 / logits.shape[1]
