"""SOP+ (Liu et al. 2022, https://arxiv.org/abs/2202.14026): SOP with a consistency and a class-balance loss.

    θ ← θ − SGD(∇θ [(1/N) Σ_i −log φ(p_i + s_i)_y + λ_C L_C + λ_B L_B])

    L_C   (1/N) Σ_i KL(p_i ‖ q_i)              q the prediction for the strongly augmented samples; p is a constant
    L_B   KL(π ‖ (1/N) Σ_i p_i)                π the uniform distribution of the classes
    u, v  as in `sop`

The clean set is used only to select the epoch. L_C is left out for samples without strong augmentation (tables, texts).

With the recipe: L_C replaces the recipe's loss on strongly augmented samples.

Departures from the paper:

-   Strong augmentation is that of this package (`data/strong_augment`). The authors' code has AutoAugment and Cutout.
-   L_B is computed from p, as in the paper; the code computes it from φ(p + s), through which it also trains u.
-   `--recipe own` has the paper's schedule for CIFAR-10 with symmetric noise and a PreAct ResNet-18. The authors' code
    anneals the learning rate to 0.0002, here it is annealed to 0.
-   What `sop` states about o, u and v.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.forward_pass import Theta, forward
from metalabelnet.data.strong_augment import can_augment_strongly
from metalabelnet.methods.joint_optimization import prior_loss
from metalabelnet.methods.method import MethodTraits
from metalabelnet.methods.mlnt import consistency_loss
from metalabelnet.methods.sop import SOP, SOPSettings

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class SOPPlusSettings(SOPSettings):
    """Settings with the paper's values for symmetric noise on CIFAR-10."""

    consistency: float = field(default=0.9, metadata={"help": "λ_C, weight of the consistency loss"})
    balance: float = field(default=0.1, metadata={"help": "λ_B, weight of the class-balance loss"})


class SOPPlus(SOP):
    """SOP with a consistency loss on strongly augmented samples and a class-balance loss."""

    traits = MethodTraits(
        summary="SOP with a consistency loss on strongly augmented samples and a class-balance loss",
        reference="Liu et al. 2022",
        paper_url="https://arxiv.org/abs/2202.14026",
        traceable=True,
        relative_cost=2.1,
        own_recipe={
            "epochs": 300,
            "lr": 0.02,
            "lr_schedule": "cosine",
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
            "settings": {"u_step": 10.0, "v_step": 10.0, "consistency": 0.9, "balance": 0.1},
        },
    )
    Settings: ClassVar[type] = SOPPlusSettings

    settings: SOPPlusSettings

    def __init__(self, task: Task, settings: SOPPlusSettings) -> None:
        super().__init__(task, settings)
        self.strong_augment_from = 0 if settings.consistency and can_augment_strongly(task.train.x) else None
        classes = len(task.train.classes)
        self.prior = torch.full((classes,), 1 / classes, dtype=task.dtype, device=task.train.given.device)

    def network_loss(self, theta: Theta, logits: Tensor, y: Tensor, noise: Tensor, batch: Batch) -> Tensor:
        """Return the loss of SOP plus λ_C L_C and λ_B L_B."""
        weak_only = dataclasses.replace(batch, views=dataclasses.replace(batch.views, strong=None))
        loss = super().network_loss(theta, logits, y, noise, weak_only)
        loss = loss + self.settings.balance * prior_loss(logits, self.prior)
        if batch.views.strong is None:
            return loss
        strong_logits = forward(self.net, batch.views.strong, theta, seed=batch.seed + 3, update_statistics=False)
        return loss + self.settings.consistency * consistency_loss(strong_logits, logits.detach()).mean()
