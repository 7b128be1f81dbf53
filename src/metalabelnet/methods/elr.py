"""ELR, early-learning regularization (Liu et al. 2020, https://arxiv.org/abs/2007.00151).

    t_i ← β t_i + (1 − β) p_i
    θ ← θ − SGD(∇θ (1/N) Σ_i [−log p_iy + λ log(1 − ⟨p_i, t_i⟩)])

    p_i   the prediction softmax(f_θ(x_i)) in this step; y is the given label of the sample
    t_i   the target of sample i, an average of its predictions over the epochs; at first 0
    β     weight of the past in the target
    λ     weight of the regularizer

A network learns the classes before it memorizes wrong labels. The targets keep what it learned early. The regularizer
decreases as the prediction moves toward the target; its gradient opposes that of a wrong label. Targets are constants
in the gradient. They are averages of the predictions for weakly augmented samples, whatever the recipe adds to the
loss. The clean set is used only to select the epoch.

Departures from the paper:

-   The regularizer clips p to [10⁻⁴, 1 − 10⁻⁴], as the authors' code does: it has no lower bound otherwise. The code
    averages clipped predictions in the targets, too; here, as in the paper, they are not clipped.
-   `--recipe own` has the paper's schedule for CIFAR-10, in which the learning rate drops to a hundredth at epochs 40
    and 80. For symmetric noise the authors' code restarts cosine annealing every 10 of 150 epochs instead. For
    asymmetric noise the paper has β = 0.9 and λ = 1. Its network is a ResNet-34.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.one_hot import one_hot
from metalabelnet.core.ranks import own_span
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import gather_soft_labels
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

MIN_PROBABILITY = 1e-4  # in the regularizer


def early_learning_regularizer(logits: Tensor, targets: Tensor) -> Tensor:
    """Return log(1 − ⟨p, t⟩) of every sample, with p clipped to [10⁻⁴, 1 − 10⁻⁴].

    It is 0 for t = 0, and log 10⁻⁴ where p and t are one-hot at the same class. Where nothing is clipped, its
    derivative with respect to the logits is p_c (⟨p, t⟩ − t_c) / (1 − ⟨p, t⟩) (Lemma 2 of the paper): a step raises the
    logits of the classes that the target prefers.
    """
    p = logits.softmax(1).clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return torch.log1p(-(p * targets).sum(1))


def update_targets(table: ShardedTable, index: Tensor, logits: Tensor, beta: float) -> Tensor:
    """Update the targets t ← βt + (1 − β)p of these rows of the table in place, and return them."""
    targets = beta * table[index] + (1 - beta) * logits.detach().softmax(1)
    table[index] = targets
    return targets


def targets_to_labels(targets: Tensor, given: Tensor) -> Tensor:
    """Return soft labels: the targets, and the rest of the probability on the given label.

    After k updates a target sums to 1 − β^k. A row without a given label has a uniform soft label.
    """
    initial = torch.where(given[:, None] >= 0, one_hot(given, targets), 1 / targets.shape[1])
    return targets + (1 - targets.sum(1, keepdim=True)).clamp_min(0) * initial


def soft_labels_of(own_targets: Tensor, given: Tensor) -> ClassTable:
    """Return the soft labels of all rows, from the targets of the rows that this process stores."""
    return gather_soft_labels(targets_to_labels(own_targets, given[own_span(len(given))]), given)


@dataclass(frozen=True, kw_only=True)
class ELRSettings:
    """Settings with the paper's values for symmetric noise on CIFAR-10."""

    beta: float = field(default=0.7, metadata={"help": "β, weight of the past in the targets, from 0 to 1"})
    regularization: float = field(default=3.0, metadata={"help": "λ, weight of the regularizer"})

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise InputError(f"beta={self.beta} is out of range: give a number from 0 to 1")


class ELR(Method):
    """Minimize cross-entropy plus the early-learning regularizer over the labeled rows.

    Attributes
    ----------
    targets : TensorState
        t: the target of every training row.
    has_labels : bool
        False after a model is loaded: the targets belong to the rows of the training run.
    """

    traits = MethodTraits(
        summary="cross-entropy with a regularizer that keeps predictions close to their average over the epochs",
        reference="Liu et al. 2020",
        paper_url="https://arxiv.org/abs/2007.00151",
        traceable=True,
        own_recipe={
            "epochs": 120,
            "lr": 0.02,
            "lr_milestones": (40, 40, 80, 80),
            "momentum": 0.9,
            "weight_decay": 1e-3,
            "batch_size": 128,
            "settings": {"beta": 0.7, "regularization": 3.0},
        },
    )
    Settings: ClassVar[type] = ELRSettings

    settings: ELRSettings

    def __init__(self, task: Task, settings: ELRSettings) -> None:
        super().__init__(task, settings)
        given = task.train.given
        self.targets = TensorState(t=ShardedTable.full(len(given), len(task.train.classes), 0, given, task.dtype))
        self.has_labels = True

    def step(self, batch: Batch) -> Tensor:
        """Update the targets of the batch, then take one step of the network."""
        theta = trainable_parameters(self.net)
        logits = forward(self.net, batch.x, theta, seed=batch.seed, update_statistics=True)
        t = update_targets(self.targets.table("t"), batch.index, logits, self.settings.beta)

        def loss_of(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
            return (cross_entropy(z, y) + self.settings.regularization * early_learning_regularizer(z, t)).mean()

        loss = self.recipe_loss(self.net, theta, loss_of, batch.views, (batch.given, t), batch.seed, logits=logits)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def soft_labels(self) -> ClassTable | None:
        """Return the targets of all training rows as soft labels."""
        return soft_labels_of(self.targets["t"], self.task.train.given) if self.has_labels else None

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the network. Targets are not part of a model."""
        super().load_model_state_dict(tensors)
        self.has_labels = False

    def components(self) -> dict[str, Stateful]:
        """Add the targets."""
        return super().components() | {"targets": self.targets}
