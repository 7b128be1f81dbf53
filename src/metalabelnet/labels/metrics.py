"""How good a classifier is: accuracy, macro-F1, calibration error. Accuracies are per cent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.core.losses import cross_entropy
from metalabelnet.data.disk_tensor import chunks

if TYPE_CHECKING:
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.engine import Engine
    from metalabelnet.methods import Method


def logits_of(by: Method | Engine, x: Samples) -> Tensor:
    """The classifier's logits for all these samples, a chunk at a time."""
    return torch.cat([by.logits(part) for part in chunks(x)])


def scored(logits: Tensor, true: Tensor) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of these logits on the true labels."""
    accuracy = 100 * (logits.argmax(1) == true).double().mean()
    return float(accuracy), float(cross_entropy(logits.double(), true).mean())


def macro_f1(predicted: Tensor, true: Tensor, classes: int) -> float:
    """The mean over classes of F1 = 2tp/(2tp + fp + fn), in per cent; 0 for a class nobody predicts right."""
    counts = torch.bincount(true * classes + predicted, minlength=classes * classes).view(classes, classes).double()
    hits, rows, columns = counts.diagonal(), counts.sum(1), counts.sum(0)
    present = rows > 0
    return float(100 * (2 * hits / (rows + columns).clamp_min(1))[present].mean())


def calibration_error(probabilities: Tensor, true: Tensor, bins: int = 15) -> float:
    """Expected calibration error in per cent: |confidence − accuracy| over equal bins of confidence."""
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == true).double()
    which = (confidence * bins).long().clamp_max(bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64, device=which.device).index_add_(0, which, confidence - right)
    return float(100 * gap.abs().sum() / len(true))
