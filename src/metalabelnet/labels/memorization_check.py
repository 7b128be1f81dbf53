"""A warning where a run has learned its labels by heart, so that its label table corrects next to nothing.

The rule behind the table is held to clean samples, on which labels learned by heart do not show. Clean samples that
carry a given label too tell how many of those are wrong: if the table finds hardly any, it has seen too many epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.core.intervals import wilson

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.label_table import LabelTable

HARDLY = 0.25  # of the share of wrong labels that the clean samples show at least (95 %)


def by_heart(problem: Problem, table: LabelTable) -> str:
    """The warning, or nothing."""
    parts = [problem.clean] if problem.validation is problem.clean else [problem.clean, problem.validation]
    given, true = (torch.cat([getattr(part, name) for part in parts]) for name in ("given", "true"))
    checked, wrong = int((given >= 0).sum()), int(((given >= 0) & (given != true)).sum())
    labeled = table.rows.given >= 0
    total = int(labeled.sum())
    differ = int((labeled & (table.verdict().label != table.rows.given)).sum())
    if not checked or not total or differ / total >= HARDLY * wilson(wrong, checked)[0]:
        return ""
    return (
        f"{differ} of {total} labels differ from the given ones, but {wrong} of {checked} clean samples were given a "
        "wrong one: the network has learned labels by heart; train for fewer epochs (--epochs, --warmup)"
    )
