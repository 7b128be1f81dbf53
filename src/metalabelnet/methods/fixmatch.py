"""FixMatch (Sohn et al. 2020, https://arxiv.org/abs/2001.07685): the clean set labeled, everything else unlabeled.

    q ← softmax(f_θ(x)),   ŷ ← argmax q,   keep ← max q ≥ τ
    θ ← θ − SGD(∇θ ((1/M) Σ −log p_{y_m}(x_m) + λ_u (1/N) Σ keep · −log p_ŷ(x_s)))

    x, x_s    a training batch with weak and with strong augmentation; given labels are not read
    x_m, y_m  a batch of the clean set
    q, ŷ      prediction and pseudo-label; no gradient passes through them
    τ, λ_u    the settings `threshold` and `unlabeled_weight`

Departures from the paper: the strong augmentation is that of this package (affine map, color, cutout) in place of
RandAugment, and a step has as many clean as unlabeled samples, in place of 1 to 7, as for the other methods here. The
paper's cosine schedule, EMA and weight decay belong to the recipe. Samples that are no images have no strong
augmentation: the loss on pseudo-labels is then that on the samples themselves. The paper has the last epoch; here the
result is selected from the last fifth of the epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.data.strong_augment import can_augment_strongly
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class FixMatchSettings:
    """Settings with the paper's values."""

    threshold: float = field(
        default=0.95, metadata={"help": "τ, smallest predicted probability of a pseudo-label that is used"}
    )
    unlabeled_weight: float = field(default=1.0, metadata={"help": "λ_u, weight of the loss on pseudo-labels"})

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold={self.threshold} is out of range: give a probability from 0 to 1")


class FixMatch(Method):
    """Minimize cross-entropy on the clean set and on confident pseudo-labels of all training rows."""

    traits = MethodTraits(
        summary="clean labels, and confident predictions as labels of strongly augmented samples; no given label",
        reference="Sohn et al. 2020",
        paper_url="https://arxiv.org/abs/2001.07685",
        uses_unlabeled=True,
        needs_clean=True,
        reads_given=False,
        traceable=True,
        select_from=0.8,
        relative_cost=2.6,
        own_recipe={
            "lr": 0.03,
            "lr_schedule": "cosine",
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "ema": 0.999,
        },
    )
    Settings: ClassVar[type] = FixMatchSettings
    clean_from = 0

    settings: FixMatchSettings

    def __init__(self, task: Task, settings: FixMatchSettings) -> None:
        super().__init__(task, settings)
        if can_augment_strongly(task.train.x):
            self.strong_augment_from = 0

    def labeled_only(self, epoch: int) -> bool:
        """Return False: rows without a given label are used as well."""
        return False

    def step(self, batch: Batch) -> Tensor:
        """Take one step on clean labels and pseudo-labels."""
        s, theta = self.settings, trainable_parameters(self.net)
        clean_loss = self.recipe_loss(
            self.net,
            theta,
            lambda logits, y: cross_entropy(logits, y).mean(),
            batch.clean_views,
            (batch.clean_y,),
            batch.seed,
        )
        with torch.no_grad():
            weak = forward(self.net, batch.x, theta, seed=batch.seed + 1, update_statistics=True)
            confidence, pseudo_label = weak.softmax(1).max(1)
            keep = (confidence >= s.threshold).to(weak)
        x = batch.x if batch.views.strong is None else batch.views.strong
        logits = forward(self.net, x, theta, seed=batch.seed + 2, update_statistics=False)
        loss = clean_loss + s.unlabeled_weight * (keep * cross_entropy(logits, pseudo_label)).mean()
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()
