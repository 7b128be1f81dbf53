"""One sample, two views: the classifier is to say of the strong view what the soft label says of the sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def consistency_loss(
    logits: Tensor, log_soft_labels: Tensor, *, sharpen: float = 1.0, confidence: float = 0.0
) -> Tensor:
    """−Σ_j t_j log p_j with t ∝ ŷ^sharpen, where the largest ŷ_j reaches the confidence; 0 elsewhere.

    logits           of the strong view
    log_soft_labels  log ŷ of the sample

    Cross-entropy to ŷ with sharpen 1, to its largest class as sharpen → ∞ (as in FixMatch, Sohn et al. 2020). A
    confidence of 0 takes every sample.
    """
    target = functional.softmax(sharpen * log_soft_labels, dim=1)
    sure = (log_soft_labels.exp().amax(1) >= confidence).to(logits)
    return -sure * (target * functional.log_softmax(logits, dim=1)).sum(1)
