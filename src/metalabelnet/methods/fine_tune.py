"""Warm-up on the noisy labels, then the clean samples: the second thing to try with a clean set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Task


class FineTune(Method):
    """Minimises −log p_y over the labeled rows during warm-up, over the clean rows from then on."""

    summary = "warm-up on the given labels, then training on the clean samples"
    reference = "–"
    traceable = True
    needs_clean = True
    has_warmup = True

    def __init__(self, task: Task, settings: Any) -> None:
        super().__init__(task, settings)
        self.clean_from: int = task.schedule.warmup

    def begin_epoch(self, epoch: int) -> None:
        """Change from the given labels to the clean ones at the end of warm-up."""
        super().begin_epoch(epoch)
        self.on_clean = epoch >= self.clean_from

    def phase(self) -> str:
        """Which labels are learned from."""
        return "clean" if self.on_clean else "given"

    def step(self, batch: Batch) -> Tensor:
        """A conventional step on the labels of the phase."""
        if self.on_clean:
            return self.learn(batch.clean_x, batch.clean_y, batch.seed)
        return self.learn(batch.x, batch.given, batch.seed)
