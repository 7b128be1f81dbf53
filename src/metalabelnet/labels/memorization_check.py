"""A check for memorized labels: a label table that corrects far fewer labels than the clean samples show to be wrong.

The correction rule compares candidates on clean samples, where memorization does not show. Clean samples that carry a
given label show how many given labels are wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.core.intervals import wilson

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.label_table import LabelTable

MIN_CORRECTED_RATIO = 0.25  # corrected labels / wrong labels; the latter by the lower end of a 95 % CI


def memorization_warning(problem: Problem, table: LabelTable) -> str:
    """Return a warning if the run has memorized its given labels, else an empty string.

    Parameters
    ----------
    problem : Problem
        The rows of the run. Clean rows that carry a given label show how many given labels are wrong.
    table : LabelTable
        The corrected labels of the run (`Result.labels`).

    Returns
    -------
    str
        A warning if the share of corrected labels is below a quarter of the share of wrong labels among clean rows
        (lower end of its 95 % Wilson interval). Empty otherwise, and where no clean row carries a given label.

    References
    ----------
    Wilson score interval: https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval
    """
    parts = [problem.clean, problem.validation] if problem.holds_out else [problem.clean]
    given, true = (torch.cat([getattr(rows, name) for rows in parts]) for name in ("given", "true"))
    clean_labeled, clean_wrong = int((given >= 0).sum()), int(((given >= 0) & (given != true)).sum())
    labeled = table.rows.given >= 0
    total = int(labeled.sum())
    corrected = int((labeled & (table.decisions().label != table.rows.given)).sum())
    if not clean_labeled or not total:
        return ""
    if corrected / total >= MIN_CORRECTED_RATIO * wilson(clean_wrong, clean_labeled)[0]:
        return ""
    return (
        f"{corrected} of {total} corrected labels differ from the given ones, but {clean_wrong} of {clean_labeled} "
        "clean samples have a wrong given label: the network has memorized labels; train for fewer epochs "
        "(--epochs, --warmup)"
    )
