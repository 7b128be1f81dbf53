"""Quality of annotators: how often the labels of each one are right, on clean samples and on all samples.

    r_i        probability that the annotator's label of sample i is right: 0 or 1 for a clean sample, else the
               probability of that class in the label table
    accuracy   mean of r_i over the n samples that the annotator labeled
    interval   Wilson's interval for n V / (V + U) samples, with V = accuracy (1 − accuracy), U = mean of r_i (1 − r_i)

V / n is the variance from the choice of samples and U / n the variance because their classes are not known; they add as
the variances within and between imputations do. The interval is as good as the probabilities of the label table. The
accuracy on clean samples does not depend on them.

References
----------
.. [1] D. B. Rubin, "Multiple Imputation for Nonresponse in Surveys", Wiley 1987,
   https://doi.org/10.1002/9780470316696
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.core.annotations import ABSTAINED
from metalabelnet.core.intervals import wilson
from metalabelnet.core.top_classes import value_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metalabelnet.core.intervals import Interval
    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.label_table import LabelTable


def annotator_quality(problem: Problem, labels: LabelTable) -> list[dict[str, Any]] | None:
    """Return the quality of each annotator, those with the most labels first; None without annotations.

    annotator                            name
    labels, abstained                    number of samples that were labeled, and that were not although asked
    accuracy, low, high                  share of right labels with its 95 % interval, per cent; None without labels
    clean_labels                         number of clean samples that were labeled
    clean_accuracy, clean_low, clean_high  share of right labels among them with its 95 % Wilson interval, per cent
    """
    parts = (problem.clean, problem.validation) if problem.holds_out else (problem.clean,)
    annotations = labels.rows.annotations
    if annotations is None:
        return None
    names, voted = annotations.names, annotations.label != ABSTAINED
    sample = torch.from_numpy(annotations.sample[voted]).to(labels.rows.given.device)
    label = torch.from_numpy(annotations.label[voted]).to(sample.device)
    annotator = [annotations.annotator]
    right = [np.full(len(annotations), np.nan)]
    right[0][voted] = value_at(labels.probabilities[sample], label).double().cpu().numpy()
    for rows in parts:
        if problem.has_clean_set and rows.annotations is not None:
            clean, true = rows.annotations, rows.true.cpu().numpy()
            annotator.append(clean.annotator)
            right.append(np.where(clean.label == ABSTAINED, np.nan, clean.label == true[clean.sample]))
    is_clean = np.repeat([False, *[True] * (len(right) - 1)], [len(part) for part in right])
    found = _by_annotator(np.concatenate(annotator), np.concatenate(right), is_clean, names)
    return sorted(found, key=lambda one: (-one["labels"], one["annotator"]))


def accuracy_interval(right: NDArray[np.float64]) -> tuple[float, Interval]:
    """Return accuracy and its 95 % interval from the probabilities that labels are right."""
    accuracy, n = float(right.mean()), len(right)
    sampling, unknown = accuracy * (1 - accuracy), float((right * (1 - right)).mean())
    n_effective = n * sampling / (sampling + unknown) if unknown > 0 else n
    return accuracy, wilson(accuracy * n_effective, n_effective)


def _by_annotator(
    annotator: NDArray[np.int64], right: NDArray[np.float64], is_clean: NDArray[np.bool_], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return the quality of each annotator; `right` is NaN where the annotator abstained."""
    order = np.argsort(annotator, kind="stable")
    ends = np.searchsorted(annotator[order], np.arange(1, len(names)))
    found = []
    for name, entries in zip(names, np.split(order, ends), strict=True):
        voted = entries[~np.isnan(right[entries])]
        on_clean = right[voted[is_clean[voted]]]
        found.append(
            {
                "annotator": name,
                "labels": len(voted),
                "abstained": len(entries) - len(voted),
                **_percent("", right[voted]),
                "clean_labels": len(on_clean),
                **_percent("clean_", on_clean),
            }
        )
    return found


def _percent(prefix: str, right: NDArray[np.float64]) -> dict[str, float | None]:
    keys = [f"{prefix}{key}" for key in ("accuracy", "low", "high")]
    if not len(right):
        return dict.fromkeys(keys)
    accuracy, (low, high) = accuracy_interval(right)
    return dict(zip(keys, (100 * accuracy, 100 * low, 100 * high), strict=True))
