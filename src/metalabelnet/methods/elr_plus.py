"""ELR+ (Liu et al. 2020, https://arxiv.org/abs/2007.00151): ELR with two networks, mean teachers and MixUp.

For each network f with weights θ, and the teacher θ̄' of the other network:

    t_i ← β t_i + (1 − β) softmax(f_θ̄'(x_i))
    x' = ℓ x + (1 − ℓ) x_π,   y' = ℓ y + (1 − ℓ) y_π,   t' = ℓ t + (1 − ℓ) t_π,   ℓ ~ Beta(α, α)
    θ ← θ − SGD(∇θ (1/N) Σ_i [−Σ_c y'_ic log p_ic + λ log(1 − ⟨p_i, t'_i⟩)]),   p = softmax(f_θ(x'))
    θ̄ ← γ θ̄ + (1 − γ) θ

    y     the given labels, one-hot
    t_i   the target of sample i for this network; at first 0
    θ̄     the network's teacher, an EMA of its weights
    π     a random permutation of the batch
    β, λ  weight of the past in the targets, and of the regularizer
    γ     decay of the EMA: 0.997 exp(−5 (1 − e/E)²) in epoch e, until it is 0.997 from epoch E on

The mean of both networks' probabilities predicts. The clean set is used only to select the epoch.

With the recipe:

-   MixUp is part of the method and replaces the recipe's. Strongly augmented samples are mixed in the same way.
-   The teachers give targets and do not predict. If the recipe has an EMA, the EMAs of both networks predict.

Departures from the paper:

-   Both networks take a step on every batch, with the same ℓ and π. In the authors' code each has its own batches, and
    the second network's epoch follows the first's.
-   The ramp of γ and the clipping of p are those of the authors' code; the paper has neither. The code's ramp takes
    40,000 of 78,200 steps.
-   The code multiplies the labels by the targets on CIFAR-100, and averages logits instead of probabilities. The paper
    has neither.
-   Teachers have their own BatchNorm statistics, from forward passes in train mode, as in the code. They start as
    copies of the networks; in the code they are newly initialized, which γ ≈ 0.007 in the first epoch makes irrelevant.
-   For asymmetric noise the paper has β = 0.9 and λ = 1. Its network is a PreAct ResNet-18.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.one_hot import one_hot
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.data.batches import Views
from metalabelnet.errors import InputError
from metalabelnet.methods.elr import ELRSettings, early_learning_regularizer, soft_labels_of, update_targets
from metalabelnet.methods.joint_optimization import soft_label_cross_entropy
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.ensemble import Ensemble

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metalabelnet.core.optimizers import SGD
    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def mix(x: Tensor, views: Views) -> Tensor:
    """Return ℓ x + (1 − ℓ) x_π with the draws of the batch; x itself if there are none."""
    if views.partner is None or views.share is None:
        return x
    return views.share * x + (1 - views.share) * x[views.partner]


def teacher_decay(max_decay: float, epoch: float, ramp: float) -> float:
    """Return γ = max_decay · exp(−5 (1 − e/E)²), and max_decay from epoch E = `ramp` on."""
    done = min(epoch / ramp, 1.0) if ramp else 1.0
    return max_decay * math.exp(-5 * (1 - done) ** 2)


@dataclass(frozen=True, kw_only=True)
class ELRPlusSettings(ELRSettings):
    """Settings with the paper's values for symmetric noise on CIFAR-10."""

    mixup: float = field(default=1.0, metadata={"help": "α of MixUp's distribution Beta(α, α); 0: no MixUp"})
    ema: float = field(default=0.997, metadata={"help": "γ, decay of the teachers after the ramp-up"})
    ramp: float = field(default=61.4, metadata={"help": "E, epochs of the ramp-up of γ, in a run of 120"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ema <= 1:
            raise InputError(f"ema={self.ema} is out of range: give a number from 0 to 1")


class ELRPlus(Method):
    """Train two networks with early-learning regularization, each toward targets from the other's teacher.

    Attributes
    ----------
    peer, peer_sgd
        The second network and its optimizer.
    teacher, peer_teacher : torch.nn.Module
        EMAs of both networks, in train mode.
    targets : TensorState
        t of every training row for each network, "net" and "peer".
    gamma : Tensor
        γ in the current epoch.
    has_labels : bool
        False after a model is loaded: the targets belong to the rows of the training run.
    """

    traits = MethodTraits(
        summary="ELR with two networks, each regularized toward the averaged other network, and MixUp",
        reference="Liu et al. 2020",
        paper_url="https://arxiv.org/abs/2007.00151",
        traceable=True,
        relative_cost=2.8,
        own_recipe={
            "epochs": 200,
            "lr": 0.02,
            "lr_milestones": (150,),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
            "settings": {"beta": 0.7, "regularization": 3.0, "mixup": 1.0, "ema": 0.997},
        },
    )
    Settings: ClassVar[type] = ELRPlusSettings

    settings: ELRPlusSettings

    def __init__(self, task: Task, settings: ELRPlusSettings) -> None:
        super().__init__(task, settings)
        self.mixup = settings.mixup
        self.peer = task.make_net(1)
        self.peer_sgd = self.make_sgd(self.peer)
        self.average_weights("peer", self.peer)
        self.teacher, self.peer_teacher = (
            copy.deepcopy(net).requires_grad_(requires_grad=False) for net in (self.net, self.peer)
        )
        given = task.train.given
        net, peer = (ShardedTable.full(len(given), len(task.train.classes), 0, given, task.dtype) for _ in range(2))
        self.targets = TensorState(net=net, peer=peer)
        self.gamma = torch.zeros((), dtype=task.dtype, device=given.device)
        self.has_labels = True

    def begin_epoch(self, epoch: int) -> None:
        """Set γ."""
        super().begin_epoch(epoch)
        ramp = self.settings.ramp * self.task.recipe.epochs / 120
        self.gamma.fill_(teacher_decay(self.settings.ema, epoch, ramp))

    def step(self, batch: Batch) -> Tensor:
        """Update the targets of the batch, then take one step of each network and update the teachers."""
        seed = batch.seed
        t = self._update_targets("net", self.peer_teacher, batch, seed + 5)
        peer_t = self._update_targets("peer", self.teacher, batch, seed + 6)
        loss = self._train(self.net, self.sgd, batch, t, seed)
        peer_loss = self._train(self.peer, self.peer_sgd, batch, peer_t, seed + 1)
        self._update_teacher(self.teacher, self.net)
        self._update_teacher(self.peer_teacher, self.peer)
        return (loss + peer_loss) / 2

    @torch.no_grad()
    def _update_targets(self, name: str, teacher: nn.Module, batch: Batch, seed: int) -> Tensor:
        """Update the targets of a network with the prediction of the other's teacher."""
        logits = forward(teacher, batch.x, {}, seed=seed, update_statistics=True)
        return update_targets(self.targets.table(name), batch.index, logits, self.settings.beta)

    def _train(self, net: nn.Module, sgd: SGD, batch: Batch, t: Tensor, seed: int) -> Tensor:
        """Take one step of a network on the mixed batch, and return its loss."""
        theta, views = trainable_parameters(net), batch.views
        y = one_hot(batch.given, t)
        mixed = Views(weak=mix(views.weak, views), strong=None if views.strong is None else mix(views.strong, views))

        def loss_of(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
            regularizer = early_learning_regularizer(z, t)
            return (soft_label_cross_entropy(z, y) + self.settings.regularization * regularizer).mean()

        loss = self.recipe_loss(net, theta, loss_of, mixed, (mix(y, views), mix(t, views)), seed)
        apply_gradients(sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    @torch.no_grad()
    def _update_teacher(self, teacher: nn.Module, net: nn.Module) -> None:
        """Update θ̄ ← γθ̄ + (1 − γ)θ."""
        for slow, fast in zip(teacher.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.gamma.to(slow.dtype))

    def classifier(self) -> nn.Module:
        """Return the ensemble of both networks."""
        return Ensemble(self.prediction_net("net", self.net), self.prediction_net("peer", self.peer))

    def soft_labels(self) -> ClassTable | None:
        """Return the mean of both networks' targets of all training rows as soft labels."""
        mean = (self.targets["net"] + self.targets["peer"]) / 2
        return soft_labels_of(mean, self.task.train.given) if self.has_labels else None

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the networks. Targets are not part of a model."""
        super().load_model_state_dict(tensors)
        self.has_labels = False

    def components(self) -> dict[str, Stateful]:
        """Add the second network, the teachers and the targets."""
        pair: dict[str, Stateful] = {"peer": self.peer, "peer_sgd": self.peer_sgd}
        teachers: dict[str, Stateful] = {"teacher": self.teacher, "peer_teacher": self.peer_teacher}
        return super().components() | pair | teachers | {"targets": self.targets}
