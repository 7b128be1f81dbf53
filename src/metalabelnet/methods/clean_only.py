"""The clean samples alone: the first thing to try with a clean set, and a bar to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch


class CleanOnly(Method):
    """Minimises −log p_y over the clean rows, with as many steps as the other methods take."""

    summary = "training on the clean samples alone"
    reference = "–"
    traceable = True
    needs_clean = True
    reads_given = False
    clean_from = 0

    def step(self, batch: Batch) -> Tensor:
        """A conventional step on the clean batch."""
        return self.learn(batch.clean_x, batch.clean_y, batch.seed)
