"""Warnings about the labels of a run: collapsed labels, memorization, corrected labels that are no better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.labels.memorization_check import memorization_warning

if TYPE_CHECKING:
    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.given_check import GivenCheck
    from metalabelnet.labels.label_table import LabelTable

COLLAPSED_SHARE = 0.99  # of the samples with the same class: from here on labels have collapsed
MAX_SHARE_IN_CLEAN_SET = 0.9  # of that class in the clean set; beyond, most labels are rightly the same


def label_warnings(problem: Problem, table: LabelTable, check: GivenCheck | None, *, epochs: int) -> list[str]:
    """Return the warnings about the labels of a run.

    check   comparison with the given labels on clean rows
    epochs  epochs of the run; a method without epochs does not memorize
    """
    warnings = [collapse_warning(problem, "corrected labels", table.probabilities)]
    if table.soft_labels is not None:
        warnings.append(collapse_warning(problem, "soft labels", table.soft_labels))
    if check is not None and check.keeps_given:
        warnings.append(
            f"on {check.samples} clean samples {check.corrected} corrected labels are right, but {check.given} given "
            "labels: the label table keeps the given labels (suspicion still ranks them)"
        )
    elif epochs:
        warnings.append(memorization_warning(problem, table))
    return [warning for warning in warnings if warning]


def collapse_warning(problem: Problem, what: str, p: ClassTable) -> str:
    """Return a warning if nearly all samples have the same most likely class, else an empty string."""
    classes = problem.train.classes
    counts = torch.bincount(p.argmax(1), minlength=len(classes))
    largest = int(counts.argmax())
    share, clean_share = float(counts[largest] / counts.sum()), float((problem.clean.true == largest).double().mean())
    if share < COLLAPSED_SHARE or clean_share > MAX_SHARE_IN_CLEAN_SET:
        return ""
    return (
        f"{what} have collapsed: {100 * share:.1f} % are {classes[largest]!r}, as are {100 * clean_share:.0f} % of the "
        "clean samples; lower the learning rate (--lr), or choose another method"
    )
