"""Meta Soft Label Generation: soft labels in a table, moved so that learning from them serves the clean samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.core.algorithm import Iteration, Phase2Settings, SoftLabels
from metalabelnet.core.label_logits import SoftLabelTable
from metalabelnet.methods.method import CIFAR10_RECIPE, Method, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


@dataclass(frozen=True, kw_only=True)
class MSLGSettings(Phase2Settings):
    """The values of the authors' code for CIFAR-10."""

    inner_step: float = field(default=0.5, metadata={"help": "α, the length of the look-ahead step"})
    label_step: float = field(
        default=4000.0,
        metadata={"help": "β, the step of the label logits; for losses averaged over samples and classes"},
    )
    k: float = field(default=10.0, metadata={"help": "K, the label logit of the given label at the start"})


class MSLG(Method):
    """Warm-up on the given labels; then every labeled row has label logits ỹ of its own, with ŷ = softmax(ỹ).

    The iteration is that of MetaLabelNet with another φ: the label logits of the batch in place of a label
    net, and a plain gradient step ỹ ← ỹ − β ∂L_meta/∂ỹ in place of Adam. The look-ahead and the classifier's
    step use KL(p ‖ ŷ), the latter with the entropy of p beside it.

    ∂L_meta/∂ỹ is (α/NC) ṗ for a batch of N samples and C classes, with ṗ the change of the predictions along
    the clean gradient: a few parts in ten thousand, hence the large β. It belongs to batches of 128; in a batch
    of half the size a label moves twice as far.

    A row without a label has no logits to start from and is left out. The paper's own recipe for CIFAR-10 is
    the one all methods share.
    """

    summary = "a soft label for each sample, moved so that training on it lowers the loss on the clean samples"
    reference = "Algan and Ulusoy 2020"
    traceable = True
    Settings: ClassVar[type] = MSLGSettings
    needs_clean = True
    has_warmup = True
    own: ClassVar[dict[str, Any]] = {**CIFAR10_RECIPE, "warmup": 44}

    settings: MSLGSettings

    def __init__(self, task: Task, settings: MSLGSettings) -> None:
        super().__init__(task, settings)
        self.iteration = Iteration(self.net, sgd=self.sgd, settings=settings)
        self.table: SoftLabelTable | None = None

    def begin_epoch(self, epoch: int) -> None:
        """At the end of warm-up, start the table from the given labels."""
        super().begin_epoch(epoch)
        if epoch >= self.task.schedule.warmup and self.table is None:
            self._build_table()

    def _build_table(self) -> None:
        rows = self.task.train
        self.table = SoftLabelTable(rows.given, len(rows.classes), self.settings.k, self.task.dtype)

    def phase(self) -> str:
        """Warm-up, or the table."""
        return "warm-up" if self.table is None else "table"

    def step(self, batch: Batch) -> Tensor:
        """Warm-up on the given labels, or one iteration on those of the table."""
        if self.table is None:
            return self.learn(batch.x, batch.given, batch.seed)
        labels = rows_of(self.table, batch.index, self.settings.label_step)
        return self.iteration(batch.x, labels, batch.clean_x, batch.clean_y, seed=batch.seed)

    def soft_labels(self) -> Tensor | None:
        """The table, once it has begun to learn."""
        return None if self.table is None else self.table.soft_labels()

    def parts(self) -> dict[str, Part]:
        """After warm-up, the table too."""
        return super().parts() if self.table is None else super().parts() | {"table": self.table}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there, in the phase it was."""
        if "table" in state:
            self._build_table()
        super().load_state(state)


def rows_of(table: SoftLabelTable, index: Tensor, step: float) -> SoftLabels:
    """The rows of a batch as something to learn: ỹ ← ỹ − β ∂L_meta/∂ỹ, kept in the table."""
    y_tilde = table.logits[index].requires_grad_()

    @torch.no_grad()
    def descend(by_phi: Iterable[Tensor]) -> None:
        (by_y_tilde,) = by_phi
        y_tilde.sub_(step * by_y_tilde)
        table.logits[index] = y_tilde

    return SoftLabels(phi=[y_tilde], log_y_hat=lambda: y_tilde.log_softmax(1), descend=descend)
