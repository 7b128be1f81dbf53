"""MSLG, Meta Soft Label Generation (Algan and Ulusoy 2020, https://arxiv.org/abs/2007.05836).

Warm-up:

    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y(x_i))

After it:

    ŷ ← softmax(ỹ)                                    label logits of the batch, from a table
    θ̂ ← θ − α ∇θ KL(p ‖ ŷ)                            look-ahead
    ỹ ← ỹ − β ∇ỹ L_meta(f_θ̂(x_m), y_m)                meta-gradient, through θ̂
    ŷ ← softmax(ỹ)
    θ ← θ − SGD_λ(∇θ (KL(p ‖ ŷ) + entropy of p))

    x, y      a training batch and its given labels
    x_m, y_m  a batch of the clean set
    f, θ      the classifier and its weights; p = softmax(f_θ(x))
    ỹ, ŷ      label logits and soft labels; ỹ starts as K times the one-hot given label
    α, β, λ   step sizes
    L_meta    cross-entropy on the clean batch

The iteration is that of MetaLabelNet (`metalabelnet.core.algorithm`) with the label logits of the batch in place of the
label net, and plain gradient descent in place of Adam.

∇ỹ L_meta is (α/NC) ṗ for N samples and C classes, with ṗ the derivative of the predictions along the gradient of the
clean loss. It is of the order of 1e-4, hence the large β. β is meant for batches of 128: with half the batch size a
label moves twice as far.

Rows without a given label are left out, because they have no initial label logits. The paper's schedule for CIFAR-10 is
the common one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.core.algorithm import Iteration, Phase2Settings, SoftLabelSource
from metalabelnet.core.soft_label_table import SoftLabelTable
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.run_options import CIFAR10_SCHEDULE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class MSLGSettings(Phase2Settings):
    """Settings with the values of the authors' code for CIFAR-10."""

    inner_step: float = field(default=0.5, metadata={"help": "α, step size of the look-ahead"})
    label_step: float = field(
        default=4000.0,
        metadata={"help": "β, step size of the label logits, for losses averaged over samples and classes"},
    )
    k: float = field(default=10.0, metadata={"help": "K, initial logit of the given label"})


class MSLG(Method):
    """Warm-up on the given labels, then meta-learned label logits for every labeled row.

    Attributes
    ----------
    iteration : Iteration
        The three steps on a batch after warm-up.
    table : SoftLabelTable or None
        Label logits of all training rows; None in warm-up.
    """

    traits = MethodTraits(
        summary="a soft label per sample, meta-learned so that training on it lowers the loss on the clean set",
        reference="Algan and Ulusoy 2020",
        paper_url="https://arxiv.org/abs/2007.05836",
        needs_clean=True,
        has_warmup=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=2.5,
        own_recipe={**CIFAR10_SCHEDULE, "warmup": 44},
    )
    Settings: ClassVar[type] = MSLGSettings

    settings: MSLGSettings

    def __init__(self, task: Task, settings: MSLGSettings) -> None:
        super().__init__(task, settings)
        self.iteration = Iteration(self.net, sgd=self.sgd, settings=settings)
        self.table: SoftLabelTable | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Create the table of label logits at the end of warm-up."""
        super().begin_epoch(epoch)
        if epoch >= self.task.recipe.warmup and self.table is None:
            self._build_table()

    def _build_table(self) -> None:
        rows = self.task.train
        self.table = SoftLabelTable(rows.given, len(rows.classes), self.settings.k, self.task.dtype)

    def phase(self) -> str:
        """Return "warm-up" or "table"."""
        return "warm-up" if self.table is None else "table"

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the given labels in warm-up, and one iteration on the labels of the table after it."""
        if self.table is None:
            return self.cross_entropy_step(batch.views, batch.given, batch.seed)
        labels = soft_label_source(self.table, batch.index, self.settings.label_step)
        return self.iteration(
            batch.x,
            labels,
            batch.clean_x,
            batch.clean_y,
            seed=batch.seed,
            soft_loss=self.soft_label_loss(self.iteration.l_c_and_l_e, batch),
        )

    def soft_labels(self) -> ClassTable | None:
        """Return ŷ of all training rows; None in warm-up."""
        return None if self.table is None else self.table.soft_labels()

    def components(self) -> dict[str, Stateful]:
        """Add the table after warm-up."""
        return super().components() if self.table is None else super().components() | {"table": self.table}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either phase."""
        if "table" in state:
            self._build_table()
        super().load_state_dict(state)


def soft_label_source(table: SoftLabelTable, index: Tensor, step: float) -> SoftLabelSource:
    """Return the soft labels of a batch, whose update ỹ ← ỹ − β ∂L_meta/∂ỹ is written to the table."""
    y_tilde = table[index].requires_grad_()

    @torch.no_grad()
    def update(by_phi: Iterable[Tensor]) -> None:
        (by_y_tilde,) = by_phi
        y_tilde.sub_(step * by_y_tilde)
        table[index] = y_tilde

    return SoftLabelSource(phi=[y_tilde], log_y_hat=lambda: y_tilde.log_softmax(1), update=update)
