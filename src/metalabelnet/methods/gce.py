"""GCE, generalized cross-entropy (Zhang and Sabuncu 2018, https://arxiv.org/abs/1805.07836).

    L_q     = (1 − p_y^q)/q
    L_trunc = L_q if p_y > k, else L_q(k) = (1 − k^q)/q
    θ ← θ − SGD(∇θ (1/N) Σ_i L_q), or with L_trunc if `truncated`

    p_y   predicted probability of the given label
    q     interpolates between cross-entropy (q → 0) and mean absolute error (q = 1)
    k     threshold of truncation: samples with p_y ≤ k are dropped

With truncation the set of kept samples is fixed for a while, as in the paper: at epoch 40 of 120 and every 10 epochs
after it, a pass over the training rows without augmentation selects the samples with p_y > k. The common schedule is
the paper's for CIFAR-10; the paper's network is a ResNet-34.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.data.disk_tensor import map_chunks
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.run_options import CIFAR10_SCHEDULE

if TYPE_CHECKING:
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def generalized_cross_entropy(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """Return L_q = (1 − p_y^q)/q of every sample (eq. 6 of the paper).

    It tends to cross-entropy as q → 0, is 1 − p_y at q = 1, and is at most 1/q. Its gradient is that of cross-entropy
    times p_y^q, so samples whose label has a low probability have less weight.
    """
    if q == 0:
        return cross_entropy(logits, labels)
    log_p_y = functional.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return -torch.expm1(q * log_p_y) / q


def truncated_loss(losses: Tensor, keep: Tensor, q: float, k: float) -> Tensor:
    """Return L_trunc of every sample: L_q where `keep` is True, the constant L_q(k) = (1 − k^q)/q elsewhere.

    The constant has no gradient. It makes dropping a sample optimal exactly where p_y ≤ k.
    """
    return torch.where(keep, losses, (1 - k**q) / q if q else -math.log(k))


@dataclass(frozen=True, kw_only=True)
class GCESettings:
    """Settings with the paper's values for CIFAR-10."""

    q: float = field(default=0.7, metadata={"help": "q, from 0 (cross-entropy) to 1 (mean absolute error)"})
    truncated: bool = field(default=False, metadata={"help": "drop samples with p_y ≤ k, after a third of the epochs"})
    k: float = field(
        default=0.5, metadata={"help": "k, minimum predicted probability of the given label for a sample to be kept"}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 1:
            raise InputError(f"q={self.q} is out of range: give a number from 0 (cross-entropy) to 1 (MAE)")
        if not 0 < self.k < 1:
            raise InputError(f"k={self.k} is out of range: give a probability between 0 and 1")


class GCE(Method):
    """Minimize L_q, or L_trunc, over the labeled rows."""

    traits = MethodTraits(
        summary="a loss between cross-entropy and mean absolute error; optionally drops samples with low p_y",
        reference="Zhang and Sabuncu 2018",
        paper_url="https://arxiv.org/abs/1805.07836",
        traceable=True,
        own_recipe={**CIFAR10_SCHEDULE, "settings": {"q": 0.7, "k": 0.5}},
    )
    Settings: ClassVar[type] = GCESettings

    settings: GCESettings

    def __init__(self, task: Task, settings: GCESettings) -> None:
        super().__init__(task, settings)
        self.first_selection = round(40 * self.epochs / 120)
        self.selection_interval = max(1, round(10 * self.epochs / 120))
        self.selection = TensorState(keep=torch.ones_like(task.train.given, dtype=torch.bool))

    def step(self, batch: Batch) -> Tensor:
        """Take one step on L_q, or on L_trunc with the samples selected last."""
        s = self.settings

        def loss(logits: Tensor, given: Tensor, keep: Tensor) -> Tensor:
            losses = generalized_cross_entropy(logits, given, s.q)
            return (truncated_loss(losses, keep, s.q, s.k) if s.truncated else losses).mean()

        return self.sgd_step(loss, batch.views, (batch.given, self.selection["keep"][batch.index]), batch.seed)

    def end_epoch(self, epoch: int) -> None:
        """Select the samples to keep, if a selection is due."""
        since_first = epoch + 1 - self.first_selection
        if self.settings.truncated and since_first >= 0 and since_first % self.selection_interval == 0:
            rows = self.task.train
            p = map_chunks(self.logits, rows.x).softmax(1)
            self.selection["keep"].copy_(p.gather(1, rows.given.clamp_min(0)[:, None])[:, 0] > self.settings.k)

    def components(self) -> dict[str, Stateful]:
        """Add the selection, if samples may be dropped."""
        return super().components() | ({"selection": self.selection} if self.settings.truncated else {})
