"""GCE: a loss between cross-entropy and the mean absolute error; truncated, it drops samples it cannot fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.errors import InputError
from metalabelnet.methods.method import CIFAR10_RECIPE, Method, Task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


def generalized_cross_entropy(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """L_q = (1 − p_y^q)/q (Zhang and Sabuncu 2018, eq. 6). Cross-entropy as q → 0; 1 − p_y at q = 1.

    At most 1/q. Its gradient is that of cross-entropy times p_y^q: samples the network does not believe count less.
    """
    if q == 0:
        return cross_entropy(logits, labels)
    log_p_y = functional.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return -torch.expm1(q * log_p_y) / q


def truncated(losses: Tensor, kept: Tensor, q: float, k: float) -> Tensor:
    """L_trunc: L_q for a kept sample, the constant L_q(k) = (1 − k^q)/q for a dropped one, as in the paper.

    The constant has no gradient; it makes dropping a sample pay exactly where p_y ≤ k.
    """
    return torch.where(kept, losses, (1 - k**q) / q if q else -math.log(k))


@dataclass(frozen=True, kw_only=True)
class GCESettings:
    """Settings with the paper's values for CIFAR-10."""

    q: float = field(default=0.7, metadata={"help": "q, from cross-entropy (0) to the mean absolute error (1)"})
    truncated: bool = field(
        default=False, metadata={"help": "whether samples with p_y ≤ k are dropped, from a third of the epochs on"}
    )
    k: float = field(default=0.5, metadata={"help": "k, the probability of its label that keeps a sample"})

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 1:
            raise InputError(f"q={self.q}: give a number from 0 (cross-entropy) to 1 (mean absolute error)")
        if not 0 < self.k < 1:
            raise InputError(f"k={self.k}: it is a probability; give a number between 0 and 1")


class GCE(Method):
    """Minimises L_q, or L_trunc, over the labeled rows.

    Truncated: before epoch 40 of 120, and every 10 from then on, a pass over the training rows without augmentation
    finds the samples with p_y > k; only they are learned from until the next pass. The common recipe is the paper's,
    but for the network: a ResNet-34 there.
    """

    summary = "a loss between cross-entropy and mean absolute error; truncated, it drops what it cannot fit"
    reference = "Zhang and Sabuncu 2018"
    traceable = True
    Settings: ClassVar[type] = GCESettings
    own: ClassVar[Mapping[str, Any]] = {**CIFAR10_RECIPE, "settings": {"q": 0.7, "k": 0.5}}

    settings: GCESettings

    def __init__(self, task: Task, settings: GCESettings) -> None:
        super().__init__(task, settings)
        self.first = round(40 * self.epochs / 120)
        self.every = max(1, round(10 * self.epochs / 120))
        self.memory = TensorState(kept=torch.ones_like(task.train.given, dtype=torch.bool))

    def step(self, batch: Batch) -> Tensor:
        """A step against L_q, or against L_trunc with the samples kept since the last pass."""
        s = self.settings

        def loss(logits: Tensor) -> Tensor:
            losses = generalized_cross_entropy(logits, batch.given, s.q)
            if s.truncated:
                losses = truncated(losses, self.memory["kept"][batch.index], s.q, s.k)
            return losses.mean()

        return self.minimise(loss, batch.x, batch.seed)

    def end_epoch(self, epoch: int) -> None:
        """Choose the samples for the epochs to come, where it is time."""
        after = epoch + 1
        if self.settings.truncated and after >= self.first and (after - self.first) % self.every == 0:
            rows = self.task.train
            p = torch.cat([self.logits(x).softmax(1) for x in chunks(rows.x)])
            self.memory["kept"].copy_(p.gather(1, rows.given.clamp_min(0)[:, None])[:, 0] > self.settings.k)

    def parts(self) -> dict[str, Part]:
        """The samples kept, too, where some may be dropped."""
        return super().parts() | ({"memory": self.memory} if self.settings.truncated else {})
