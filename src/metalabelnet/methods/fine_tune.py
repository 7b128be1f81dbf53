"""Warm-up on the given labels, then fine-tuning on the clean set: a baseline for methods that use a clean set.

    warm-up:    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y(x_i))
    after it:   θ ← θ − SGD(∇θ (1/N) Σ_i −log p_{y_m}(x_m))

with p = softmax(f_θ(x)), x, y a training batch with its given labels and x_m, y_m a batch of the clean set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.task import Task


class FineTune(Method):
    """Minimize −log p_y over the labeled rows during warm-up, and over the clean rows after it."""

    traits = MethodTraits(
        summary="warm-up on the given labels, then training on the clean set",
        reference="–",
        needs_clean=True,
        has_warmup=True,
        traceable=True,
    )

    def __init__(self, task: Task, settings: Any) -> None:
        super().__init__(task, settings)
        self.clean_from: int = task.recipe.warmup

    def begin_epoch(self, epoch: int) -> None:
        """Switch from the given labels to the clean set at the end of warm-up."""
        super().begin_epoch(epoch)
        self.on_clean = epoch >= self.clean_from

    def phase(self) -> str:
        """Return "clean" or "given": the labels trained on."""
        return "clean" if self.on_clean else "given"

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the labels of the phase."""
        if self.on_clean:
            return self.cross_entropy_step(batch.clean_views, batch.clean_y, batch.seed)
        return self.cross_entropy_step(batch.views, batch.given, batch.seed)
