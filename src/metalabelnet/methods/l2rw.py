"""L2RW, Learning to Reweight examples (Ren et al. 2018, https://arxiv.org/abs/1803.09050).

    θ̂(ε) ← θ − α ∇θ Σ_i ε_i l_i                          look-ahead, at ε = 0
    u_i ← max(−∂L_meta(f_θ̂(ε)(x_m), y_m)/∂ε_i, 0)         meta-gradient, through θ̂
    w_i ← u_i / Σ_j u_j                                   0 if all u_j are 0
    θ ← θ − SGD(∇θ Σ_i w_i l_i)

    x_m, y_m  a batch of the clean set
    f, θ      the classifier and its weights
    l_i       cross-entropy of training sample i with its given label
    ε_i, w_i  weight of sample i: perturbed around 0, and used
    α         step size of the look-ahead; it cancels in w
    L_meta    mean cross-entropy on the clean batch

At ε = 0 the look-ahead is θ itself, and −∂L_meta/∂ε_i = α ⟨∇θ L_meta, ∇θ l_i⟩: a sample counts as far as its gradient
agrees with that of the clean batch. Samples whose gradient opposes it get weight 0. Nothing is kept from one batch to
the next, and no parameter is added. A batch whose samples all oppose the clean batch changes θ by momentum and weight
decay only.

Departures from the paper: none in the algorithm. The authors' code is followed where the paper is silent: BatchNorm
uses the statistics of each batch, and the clean batch does not change the running statistics
(`clean_updates_statistics` changes this). `--recipe own` has the schedule of the paper's ResNet-32: 80,000 steps of 100
samples, with the learning rate divided by 10 after 40,000 and 60,000; the clean images are not augmented. What a recipe
adds to the loss (MixUp, strong augmentation) enters the last line only; samples keep their weights in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import Differentiation, MetaGradient, gradients
from metalabelnet.methods.look_ahead import batch_meta_gradient
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.task import Task


def sample_weights(meta_gradient: Tensor) -> Tensor:
    """Return w from ∂L_meta/∂ε: its negative part, scaled to the sum 1; all zeros if no sample lowers L_meta."""
    u = (-meta_gradient).clamp_min(0)
    total = u.sum()
    return u / (total + (total == 0))


def weighted_loss(logits: Tensor, given: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_i w_i l_i."""
    return (weights * cross_entropy(logits, given)).sum()


@dataclass(frozen=True, kw_only=True)
class L2RWSettings:
    """Settings of the meta-gradient; the method itself has none."""

    differentiation: Differentiation = field(default="exact", metadata={"help": "how the meta-gradient is computed"})
    clean_updates_statistics: bool = field(
        default=False,
        metadata={"help": "whether the forward pass over the clean batch updates BatchNorm's running statistics"},
    )


class L2RW(Method):
    """Minimize the cross-entropy of the labeled rows, weighted by the agreement of their gradients with clean ones."""

    traits = MethodTraits(
        summary="sample weights per batch from the agreement of each gradient with that of the clean set",
        reference="Ren et al. 2018",
        paper_url="https://arxiv.org/abs/1803.09050",
        needs_clean=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=2.7,
        own_recipe={
            "epochs": 160,
            "lr": 0.1,
            "lr_milestones": (80, 120),
            "momentum": 0.9,
            "weight_decay": 2e-4,
            "batch_size": 100,
        },
    )
    Settings: ClassVar[type] = L2RWSettings

    settings: L2RWSettings

    def __init__(self, task: Task, settings: L2RWSettings) -> None:
        super().__init__(task, settings)
        self.meta_gradient = MetaGradient(settings.differentiation)

    def step(self, batch: Batch) -> Tensor:
        """Weight the samples of the batch, then take one step on their weighted loss."""
        theta = trainable_parameters(self.net)
        epsilon = torch.zeros(len(batch.x), dtype=batch.x.dtype, device=batch.x.device, requires_grad=True)
        logits, (by_epsilon,) = batch_meta_gradient(
            self.meta_gradient,
            self.net,
            theta,
            batch,
            phi=[epsilon],
            training_loss=lambda z: weighted_loss(z, batch.given, epsilon),
            inner_step=1.0,
            clean_updates_statistics=self.settings.clean_updates_statistics,
        )
        targets = (batch.given, sample_weights(by_epsilon))
        loss = self.recipe_loss(self.net, theta, weighted_loss, batch.views, targets, batch.seed, logits=logits)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()
