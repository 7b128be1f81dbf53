"""Cross-entropy on the given labels, right or wrong: what everything else is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch


class CrossEntropy(Method):
    """Minimises −log p_y over the labeled rows."""

    summary = "plain training on the given labels"
    reference = "–"
    traceable = True

    def step(self, batch: Batch) -> Tensor:
        """A conventional step on the given labels."""
        return self.learn(batch.x, batch.given, batch.seed)
