"""How good labels and suspicions are, where the truth is known. Shares are per cent, areas are between 0 and 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.labels.metrics import calibration_error, logits_of, macro_f1

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.label_table import LabelTable
    from metalabelnet.methods import Method


def class_accuracy(predicted: Tensor, true: Tensor, classes: tuple[str, ...]) -> dict[str, float | None]:
    """The share of each class's samples that are recognised; None for a class without samples."""
    hits = torch.bincount(true[predicted == true], minlength=len(classes)).tolist()
    sizes = torch.bincount(true, minlength=len(classes)).tolist()
    return {name: 100 * hit / size if size else None for name, hit, size in zip(classes, hits, sizes, strict=True)}


def held_out(method: Method, rows: Rows) -> dict[str, Any]:
    """What stands beside the accuracy on the rows the epoch was selected on: without a test part they are all there is.

    The calibration error is that before calibrating, which these rows are used for.
    """
    p = logits_of(method, rows.x).softmax(1)
    return {
        "clean_macro_f1": macro_f1(p.argmax(1), rows.true, len(rows.classes)),
        "clean_ece": calibration_error(p, rows.true),
        "clean_class_accuracy": class_accuracy(p.argmax(1), rows.true, rows.classes),
    }


def confusion(method: Method, problem: Problem) -> dict[str, Any]:
    """How many samples of each true class are taken for which: [true, predicted, count] where there are any.

    Of the test rows or, where there are none, of those the epoch was selected on. Only pairs that occur are listed,
    because a thousand classes have a million.
    """
    part, rows = ("test", problem.test) if len(problem.test) else ("validation", problem.validation)
    pairs = torch.stack([rows.true, logits_of(method, rows.x).argmax(1)], 1)
    found, counts = torch.unique(pairs, dim=0, return_counts=True)
    return {"part": part, "counts": torch.cat([found, counts[:, None]], 1).tolist()}


def auroc(score: Tensor, positive: Tensor) -> float | None:
    """The probability that a positive sample has a higher score than another one, ties counted half.

    From the ranks (Mann and Whitney). None where all samples are of one kind.
    """
    n, hits = len(positive), int(positive.sum())
    if hits in (0, n):
        return None
    group, size = _levels(score)
    rank = size.cumsum(0) - (size - 1) / 2  # ties share the mean of their ranks, which count from 1
    above = rank[group][positive].sum() - hits * (hits + 1) / 2
    return float(above / (hits * (n - hits)))


def average_precision(score: Tensor, positive: Tensor) -> float | None:
    """Σ (recall gained) · precision, down the list from the highest score; samples that tie come in together.

    None where no sample is positive.
    """
    if not positive.any():
        return None
    group, size = _levels(-score)
    hits = torch.zeros(len(size), dtype=torch.float64, device=size.device).index_add_(0, group, positive.double())
    return float((hits / hits.sum() * hits.cumsum(0) / size.cumsum(0)).sum())


def _levels(score: Tensor) -> tuple[Tensor, Tensor]:
    """The different scores from the lowest up: which of them each sample has, and how many samples each has."""
    _, group, size = torch.unique(score.double(), return_inverse=True, return_counts=True)
    return group, size


def label_quality(labels: LabelTable) -> dict[str, Any]:
    """What the label table is worth: right labels before and after, suspicion against the truth.

    Before: the given labels that are right; after: the labels of the table, on the same rows, those with a given label.
    Without a single row whose truth is known every value is None.
    """
    rows: Rows = labels.rows
    verdict = labels.verdict()
    known, labeled = rows.true >= 0, rows.given >= 0
    both = known & labeled
    wrong = (rows.given != rows.true)[both]

    def share(right: Tensor) -> float | None:
        return float(100 * right.double().mean()) if len(right) else None

    return {
        "right_before": share(~wrong),
        "right_after": share((verdict.label == rows.true)[both]),
        "suspicion_auroc": auroc(verdict.suspicion[both], wrong),
        "suspicion_ap": average_precision(verdict.suspicion[both], wrong),
        "label_ece": calibration_error(labels.probabilities[known], rows.true[known]) if known.any() else None,
    }
