"""Cross-entropy on the given labels: the baseline.

    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y(x_i))

with p = softmax(f_θ(x)) and y the given label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch


class CrossEntropy(Method):
    """Minimize −log p_y over the labeled rows."""

    traits = MethodTraits(summary="standard training on the given labels", reference="–", traceable=True)

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the given labels."""
        return self.cross_entropy_step(batch.views, batch.given, batch.seed)
