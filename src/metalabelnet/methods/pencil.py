"""PENCIL (Yi and Wu 2019, https://arxiv.org/abs/1903.07788).

    stage 1:   θ ← θ − SGD(∇θ −log p_y)
    stage 2:   L = KL(p ‖ ŷ)/C + a·(−log ŷ_y) + (b/C)·(−Σ_j p_j log p_j)
               θ ← θ − SGD(∇θ L),   ỹ ← ỹ − λ ∂L/∂ỹ
    stage 3:   θ ← θ − SGD(∇θ KL(p ‖ ŷ)/C), with fixed labels

    ỹ, ŷ  label logits and soft label, ŷ = softmax(ỹ); ỹ starts as K times the one-hot given label
    p, y  the prediction softmax(f_θ(x)) and the given label
    C     number of classes
    a, b  weights of the compatibility loss and of the entropy (α and β in the paper)
    λ     step size of the label logits, for the mean loss of a batch

Epochs of stage 1 are not candidates for the result.

How far labels move: a sample is in one batch per epoch, and its label logits change by (λ/N)·((p − ŷ)/C + a(y − ŷ)).
At λ = 400, C = 10 and batch size N = 128 each of the two terms is at most 0.3, so a label that starts with K = 10
changes its class after 16 epochs or more. With N = 64 labels move twice as fast. λ is not corrected for this, because
small data sets are also trained for fewer epochs.

Departures from the paper in the common schedule:

-   a is half the published 0.1, at which labels of ten classes do not change class (see `pencil_loss`). On `digits`
    with 40 % uniform noise, 60 % of the labels are correct at a = 0.1 and 87 % at a = 0.05; the accuracy of the network
    is the same.
-   The learning rate follows the schedule. The paper (`--recipe own`) keeps it at 0.06 until labels are fixed and
    restarts at 0.2, with two drops, in 320 epochs: 70 of stage 1 and 120 of stage 3.
-   The paper's λ, b and learning rates depend on the noise. `--recipe own` uses λ and the learning rates of the
    authors' code, and b = 0.4, the paper's value for class-dependent noise (0.8 for uniform noise). The defaults of the
    authors' code are a = 0.4 and b = 0.1, the paper's two values exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import classification_loss, cross_entropy, entropy_loss
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.soft_label_table import SoftLabelTable
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def pencil_loss(logits: Tensor, label_logits: Tensor, given: Tensor, *, a: float, b: float) -> Tensor:
    """Return KL(p ‖ ŷ)/C + a·(−log ŷ_y) + (b/C)·(−Σ_j p_j log p_j) of every sample (section 3 of the paper).

    At a = b = 0 it is the loss of stage 3. −log ŷ_y is the cross-entropy of the label logits, so the softmax is applied
    once. For a fixed prediction the label converges to

        ŷ = (p + aC·y) / (1 + aC),

    so a confident prediction changes the class of the label only if aC < 1. At the published a = 0.1 and ten classes
    aC = 1: labels become uncertain but keep their class. The authors' code applies the softmax twice, which weakens the
    second term and lets labels change class.
    """
    classes = logits.shape[1]
    by_prediction = classification_loss(logits, label_logits.log_softmax(1)) + b * entropy_loss(logits)
    return by_prediction / classes + a * cross_entropy(label_logits, given)


@dataclass(frozen=True, kw_only=True)
class PencilSettings:
    """Settings with the values for the common schedule on CIFAR-10."""

    k: float = field(default=10.0, metadata={"help": "K, initial logit of the given label"})
    label_step: float = field(default=400.0, metadata={"help": "λ, step size of the label logits, for batch size 128"})
    a: float = field(
        default=0.05,
        metadata={"help": "a, weight of the compatibility loss; labels do not change class if a ≥ 1/classes"},
    )
    b: float = field(default=0.8, metadata={"help": "b, weight of the entropy of the predictions"})
    correct_from: float = field(default=21.0, metadata={"help": "epoch, in a run of 120, where label learning starts"})
    fix_from: float = field(default=80.0, metadata={"help": "epoch, in a run of 120, where label learning ends"})
    last_lr: float = field(
        default=0.0, metadata={"help": "learning rate of stage 3, before its milestones; 0: as in the schedule"}
    )

    def __post_init__(self) -> None:
        if not self.correct_from <= self.fix_from <= 120:
            raise InputError(
                f"correct_from={self.correct_from:g} and fix_from={self.fix_from:g} are out of range: give epochs "
                "up to 120, with correct_from at most fix_from"
            )


class Pencil(Method):
    """Train the network, then network and labels together, then the network on fixed labels.

    Attributes
    ----------
    labels : SoftLabelTable
        The label logits ỹ of all training rows.
    has_labels : bool
        False after a model is loaded: the labels belong to the rows of the training run.
    """

    traits = MethodTraits(
        summary="a soft label per sample, learned by backpropagation together with the network",
        reference="Yi and Wu 2019",
        paper_url="https://arxiv.org/abs/1903.07788",
        traceable=True,
        own_recipe={
            "epochs": 320,
            "lr": 0.06,
            "lr_milestones": (240, 280),
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "batch_size": 128,
            "settings": {
                "a": 0.1,
                "label_step": 600.0,
                "b": 0.4,
                "correct_from": 26.25,
                "fix_from": 75.0,
                "last_lr": 0.2,
            },
        },
    )
    Settings: ClassVar[type] = PencilSettings

    settings: PencilSettings

    def __init__(self, task: Task, settings: PencilSettings) -> None:
        super().__init__(task, settings)
        self.correct_from = round(settings.correct_from * self.epochs / 120)
        self.fix_from = round(settings.fix_from * self.epochs / 120)
        self.candidates_from = min(self.correct_from, self.epochs - 1)
        self.labels = SoftLabelTable(task.train.given, len(task.train.classes), settings.k, task.dtype)
        self.has_labels = True
        self.on_given, self.labels_fixed = self.correct_from > 0, self.fix_from == 0

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the schedule, which starts from `last_lr` in stage 3 if that is set."""
        lr, last_lr = super().lr_at(epoch), self.settings.last_lr
        return lr * last_lr / self.task.recipe.lr if last_lr and epoch >= self.fix_from else lr

    def begin_epoch(self, epoch: int) -> None:
        """Set the stage."""
        super().begin_epoch(epoch)
        self.on_given, self.labels_fixed = epoch < self.correct_from, epoch >= self.fix_from

    def phase(self) -> str:
        """Return "given labels", "label learning" or "fixed labels", the three stages."""
        return "given labels" if self.on_given else "fixed labels" if self.labels_fixed else "label learning"

    def step(self, batch: Batch) -> Tensor:
        """Take one step of the network on the loss of the stage and, in stage 2, one of the labels of the batch."""
        if self.on_given:
            return self.cross_entropy_step(batch.views, batch.given, batch.seed)
        a, b = (0.0, 0.0) if self.labels_fixed else (self.settings.a, self.settings.b)
        theta, y_tilde = trainable_parameters(self.net), self.labels[batch.index].requires_grad_()
        logits = forward(self.net, batch.x, theta, seed=batch.seed, update_statistics=True)

        def loss_of(z: Tensor, y: Tensor, given: Tensor) -> Tensor:
            return pencil_loss(z, y, given, a=a, b=b).mean()

        if not self.labels_fixed:
            label_loss = loss_of(logits, y_tilde, batch.given)
            (label_gradient,) = torch.autograd.grad(label_loss, y_tilde, retain_graph=True)
            self.labels[batch.index] = y_tilde.detach() - self.settings.label_step * label_gradient
        targets = (y_tilde.detach(), batch.given)
        loss = self.recipe_loss(self.net, theta, loss_of, batch.views, targets, batch.seed, logits=logits)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def soft_labels(self) -> ClassTable | None:
        """Return ŷ of all training rows, uniform for rows without a given label."""
        return self.labels.soft_labels() if self.has_labels else None

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the network. Labels are not part of a model."""
        super().load_model_state_dict(tensors)
        self.has_labels = False

    def components(self) -> dict[str, Stateful]:
        """Add the label logits."""
        return super().components() | {"labels": self.labels}
