"""What the clean samples show of the label noise: the share of wrong given labels, by class, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.intervals import wilson
from metalabelnet.labels.metrics import confusion_counts

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem
    from metalabelnet.data.rows import Rows


def count_clean_noise(problem: Problem) -> dict[str, Any] | None:
    """Return the noise among clean samples that carry a given label; None if none does. Rates are per cent.

    rate, low, high  share of wrong given labels with its 95 % Wilson interval
    samples          clean samples with a given label
    by_class         the same for the samples of each true class; classes without samples are left out
    counts           the nonzero cells of the matrix of counts, as [true class, given label, count]
    """
    parts = (problem.clean, problem.validation) if problem.holds_out else (problem.clean,)
    true, given = (torch.cat([_labels(rows, name) for rows in parts]) for name in ("true", "given"))
    true, given = true[given >= 0], given[given >= 0]
    if not problem.has_clean_set or not len(given):
        return None
    classes = problem.train.classes
    totals, right = (torch.bincount(part, minlength=len(classes)).tolist() for part in (true, true[true == given]))
    return {
        **_rate(len(given) - sum(right), len(given)),
        "by_class": {
            name: _rate(total - hits, total) for name, hits, total in zip(classes, right, totals, strict=True) if total
        },
        "counts": confusion_counts(given, true),
    }


def _labels(rows: Rows, name: str) -> torch.Tensor:
    labels: torch.Tensor = getattr(rows, name).cpu()
    return labels


def _rate(wrong: int, n: int) -> dict[str, float]:
    low, high = wilson(wrong, n)
    return {"rate": 100 * wrong / n, "low": 100 * low, "high": 100 * high, "samples": n}
