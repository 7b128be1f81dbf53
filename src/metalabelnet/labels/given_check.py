"""A check on the clean samples: are corrected labels right more often than given ones? If not, the given ones are kept.

    n         clean samples that carry a given label and whose corrected label was found without their true label
    r         share of them whose given label is right, with one more sample of each outcome: (right + 1) / (n + 2)
    p_y       w = max(r, m / (1 + m)) of the given label y of a training sample
    p_k       (1 − w) p_k / (1 − p_y) of the other classes; m is the largest p_k / (1 − p_y)

The bound m / (1 + m) makes the given label the most likely one. Samples without a given label keep their p.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from metalabelnet.core.top_classes import ClassTable, TopClasses

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 1e-6  # by which the given label is more likely than any other, if they would be equal


class GivenCheck(NamedTuple):
    """How many of the same clean samples have a right given label, and how many a right corrected label."""

    samples: int
    given: int
    corrected: int

    @property
    def keeps_given(self) -> bool:
        """Whether the given labels are right more often."""
        return self.given > self.corrected

    def to_json(self) -> dict[str, Any]:
        """Return the entry of summary.json; shares are per cent."""
        return {
            "samples": self.samples,
            "given_right": 100 * self.given / self.samples,
            "corrected_right": 100 * self.corrected / self.samples,
            "keeps_given": self.keeps_given,
        }


def compare_with_given(corrected: Tensor, given: Tensor, true: Tensor) -> GivenCheck | None:
    """Return the counts on clean samples with a given label, from labels of shape (n,); None if there is none."""
    labeled = given >= 0
    if not labeled.any():
        return None
    return GivenCheck(
        samples=int(labeled.sum()),
        given=int((given == true)[labeled].sum()),
        corrected=int((corrected == true)[labeled].sum()),
    )


def keep_given_labels(p: ClassTable, given: Tensor, check: GivenCheck) -> ClassTable:
    """Return probabilities whose most likely class is the given label, where there is one."""
    rate = (check.given + 1) / (check.samples + 2)
    labeled, label = (given >= 0)[:, None], given.clamp_min(0)
    if isinstance(p, TopClasses):
        values, is_given, left_out = p.values, p.classes == label[:, None], p.others * p.rest[:, None]
    else:
        values, is_given, left_out = p, functional.one_hot(label, p.shape[1]).bool(), p.new_zeros(len(p), 1)
    others = torch.where(is_given, 0, values)
    p_others = others.sum(1, keepdim=True) + left_out  # 1 − p_y, which would lose its digits where p_y is nearly 1
    p_others = torch.where(p_others > 0, p_others, 1)
    largest = (others / p_others).amax(1, keepdim=True)
    w = torch.where(largest > 0, (largest / (1 + largest) + MARGIN).clamp_min(rate), 1.0)
    kept = torch.where(labeled, torch.where(is_given, w, (1 - w) * (values / p_others)), values)
    if not isinstance(p, TopClasses):
        return kept
    rest = p.rest[:, None]
    return p.with_values(kept, torch.where(labeled, (1 - w) * (rest / p_others), rest)[:, 0])
