"""Classification and ranking metrics. Accuracies, F1 and calibration errors are per cent; areas are in [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.core.losses import cross_entropy
from metalabelnet.data.disk_tensor import map_chunks

if TYPE_CHECKING:
    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.engine import Engine
    from metalabelnet.methods import Method


def predict_logits(predictor: Method | Engine, x: Samples) -> Tensor:
    """Return the classifier's logits for all samples, computed in chunks."""
    return map_chunks(predictor.logits, x)


def accuracy_and_loss(logits: Tensor, true: Tensor) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy of logits on the true labels."""
    accuracy = 100 * (logits.argmax(1) == true).double().mean()
    return float(accuracy), float(cross_entropy(logits.double(), true).mean())


def top_accuracy(logits: Tensor, true: Tensor, k: int = 5) -> float | None:
    """Return how often the true class is among the k most likely ones; None for k classes or fewer."""
    if logits.shape[1] <= k:
        return None
    return float(100 * (logits.topk(k, dim=1).indices == true[:, None]).any(1).double().mean())


def class_accuracy(predicted: Tensor, true: Tensor, classes: tuple[str, ...]) -> dict[str, float | None]:
    """Return the recall of each class by name; None for a class without samples."""
    hits = torch.bincount(true[predicted == true], minlength=len(classes)).tolist()
    sizes = torch.bincount(true, minlength=len(classes)).tolist()
    return {name: 100 * hit / size if size else None for name, hit, size in zip(classes, hits, sizes, strict=True)}


def macro_f1(predicted: Tensor, true: Tensor, classes: int) -> float:
    """Return the mean of F1 = 2tp/(2tp + fp + fn) over the classes that occur in `true`."""
    counts = torch.bincount(true * classes + predicted, minlength=classes * classes).view(classes, classes).double()
    hits, rows, columns = counts.diagonal(), counts.sum(1), counts.sum(0)
    present = rows > 0
    return float(100 * (2 * hits / (rows + columns).clamp_min(1))[present].mean())


def expected_calibration_error(probabilities: ClassTable, true: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error: |confidence − accuracy|, averaged over equal-width confidence bins."""
    confidence, predicted = probabilities.double().max(1)
    correct = (predicted == true).double()
    bin_of = (confidence * bins).long().clamp_max(bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64, device=bin_of.device).index_add_(0, bin_of, confidence - correct)
    return float(100 * gap.abs().sum() / len(true))


def confusion_counts(predicted: Tensor, true: Tensor) -> list[list[int]]:
    """Return the nonzero cells of the confusion matrix as [true, predicted, count].

    The matrix is sparse for many classes: 1000 classes have a million cells.
    """
    pairs, counts = torch.unique(torch.stack([true, predicted], 1), dim=0, return_counts=True)
    cells: list[list[int]] = torch.cat([pairs, counts[:, None]], 1).tolist()
    return cells


def auroc(score: Tensor, positive: Tensor) -> float | None:
    """Return the area under the ROC curve; None where all samples are of one kind.

    It is the probability that a positive sample has a higher score than a negative one, ties counted half, computed
    from ranks (Mann–Whitney).
    """
    n, positives = len(positive), int(positive.sum())
    if positives in (0, n):
        return None
    group, size = _group_ties(score)
    rank = size.cumsum(0) - (size - 1) / 2  # tied scores share their mean rank, counted from 1
    above = rank[group][positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (n - positives)))


def average_precision(score: Tensor, positive: Tensor) -> float | None:
    """Return Σ (recall gained) · precision, from the highest score down; None where no sample is positive.

    Samples with tied scores are added together.
    """
    if not positive.any():
        return None
    group, size = _group_ties(-score)
    hits = torch.zeros(len(size), dtype=torch.float64, device=size.device).index_add_(0, group, positive.double())
    return float((hits / hits.sum() * hits.cumsum(0) / size.cumsum(0)).sum())


def _group_ties(score: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each sample the rank of its score among the distinct scores, and the count of each distinct score."""
    _, group, size = torch.unique(score.double(), return_inverse=True, return_counts=True)
    return group, size
