"""Cross-entropy on the clean set alone: a baseline for methods that use a clean set.

    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_{y_m}(x_m))

with p = softmax(f_θ(x)) and x_m, y_m a batch of the clean set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch


class CleanOnly(Method):
    """Minimize −log p_y over the clean rows, with as many steps as other methods take."""

    traits = MethodTraits(
        summary="training on the clean set alone",
        reference="–",
        needs_clean=True,
        reads_given=False,
        traceable=True,
    )
    clean_from = 0

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the clean batch."""
        return self.cross_entropy_step(batch.clean_views, batch.clean_y, batch.seed)
