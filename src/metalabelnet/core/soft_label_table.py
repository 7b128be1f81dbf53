"""Soft labels of all training samples: a table of learned ones, and those of each rank's own rows made one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from metalabelnet.core.ranks import current_world, gather_rows, own_span
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.top_classes import TopClasses, top_probabilities

if TYPE_CHECKING:
    import torch

    from metalabelnet.core.top_classes import ClassTable


class SoftLabelTable:
    """Label logits ỹ with ŷ = softmax(ỹ), indexed by the sample's row number.

    A row is initialized to K times the one-hot vector of the given label: a larger K keeps the soft label close to the
    given label for longer. The row of an unlabeled sample (−1) is initialized to zeros, a uniform soft label.
    """

    def __init__(self, given: Tensor, classes: int, k: float, dtype: torch.dtype) -> None:
        self.given, own = given, given[own_span(len(given))]
        self.table = ShardedTable.full(len(given), classes, 0, given, dtype)
        self.logits.scatter_(1, own.clamp_min(0)[:, None], k * (own >= 0).to(dtype)[:, None])

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return a copy of the label logits of these rows."""
        return self.table[index]

    def __setitem__(self, index: Tensor, logits: Tensor) -> None:
        """Replace the label logits of these rows."""
        self.table[index] = logits

    @property
    def logits(self) -> Tensor:
        """The label logits of the rows that this process stores."""
        return self.table.local

    def soft_labels(self) -> ClassTable:
        """Return ŷ of every row."""
        return gather_soft_labels(self.logits.softmax(1), self.given)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"logits": self.table.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing table."""
        self.table.load(state_dict["logits"])


def gather_soft_labels(own: Tensor, given: Tensor) -> ClassTable:
    """Return the soft labels of all rows from those of each rank's own rows; `given` are the labels of all rows.

    Of many classes each rank sends the largest probabilities alone (`TopClasses`).
    """
    if current_world() is None:
        return own
    rows = len(given)
    table = top_probabilities(own, given[own_span(rows)])
    if isinstance(table, Tensor):
        return gather_rows(table, rows)
    values, classes, rest = (gather_rows(part, rows) for part in (table.values, table.classes, table.rest))
    return TopClasses(values, classes, rest, table.total)
