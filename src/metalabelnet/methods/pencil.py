"""PENCIL: every label is a distribution of its own, learned by back-propagation beside the network.

The symbols are

    ỹ, ŷ  label logits and label, ŷ = softmax ỹ; ỹ starts as K times the one-hot given label
    p, y  the prediction softmax(z) and the given label
    C     the number of classes
    a, b  weights of the compatibility loss and of the entropy (α and β in the paper)
    λ     the label step: ỹ ← ỹ − λ ∂L/∂ỹ
    N     the number of samples in a batch
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import descend
from metalabelnet.core.forward_pass import forward, trainable
from metalabelnet.core.label_logits import SoftLabelTable
from metalabelnet.core.losses import classification_loss, cross_entropy, entropy_loss
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, Task

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


def pencil_loss(logits: Tensor, label_logits: Tensor, given: Tensor, *, a: float, b: float) -> Tensor:
    """KL(p ‖ ŷ)/C + a·(−log ŷ_y) + (b/C)·(−Σ_j p_j log p_j) (Yi and Wu 2019, section 3).

    KL(p ‖ ŷ)/C alone at a = b = 0, and that is the loss of the last stage. The label's softmax is taken once:
    −log ŷ_y is the cross-entropy of the label *logits*. For a prediction that stands still the label tends to

        ŷ = (p + aC·y) / (1 + aC),

    so a class the network is sure of gets the larger share of the label only where aC < 1. At the published
    a = 0.1 and ten classes that share is one half: labels become doubtful, and their largest entry stays where it
    was. The published code takes the softmax twice, which weakens the second term and lets labels go over.
    """
    classes = logits.shape[1]
    by_prediction = classification_loss(logits, label_logits.log_softmax(1)) + b * entropy_loss(logits)
    return by_prediction / classes + a * cross_entropy(label_logits, given)


@dataclass(frozen=True, kw_only=True)
class PencilSettings:
    """Settings with the values used for the common recipe on CIFAR-10."""

    k: float = field(default=10.0, metadata={"help": "K, how firmly the given label is believed at the start"})
    label_step: float = field(default=400.0, metadata={"help": "λ, the step of the label logits; goes with batch 128"})
    a: float = field(
        default=0.05, metadata={"help": "weight of the given labels; from 1/classes on they keep the lead"}
    )
    b: float = field(default=0.8, metadata={"help": "weight of the entropy of the predictions"})
    correct_from: float = field(default=21.0, metadata={"help": "epoch, of 120, from which on labels are learned"})
    fix_from: float = field(default=80.0, metadata={"help": "epoch, of 120, from which on labels stay as they are"})
    last_lr: float = field(
        default=0.0, metadata={"help": "rate of the last stage before its drops; 0: the schedule goes on"}
    )

    def __post_init__(self) -> None:
        if not self.correct_from <= self.fix_from <= 120:
            raise InputError(
                f"correct_from={self.correct_from:g} and fix_from={self.fix_from:g}: give epochs of 120, the first "
                "not after the second"
            )


class Pencil(Method):
    """Cross-entropy on the given labels; then network and labels learn from each other; then the network alone.

    λ belongs to the gradient of the batch mean. A label is met once an epoch, and moves by
    (λ/N)·((p − ŷ)/C + a(y − ŷ)): at λ = 400, C = 10 and a batch of N = 128 by 0.3 at most for each of the two
    terms, so that a label that starts K = 10 ahead loses its lead in 16 epochs or more. In a batch of 64 labels
    move twice as fast; λ is not corrected for that, because small data is trained on for fewer epochs as well.

    In the common recipe a is half the published 0.1, at which labels of ten classes would never go over (on `digits`
    with 40 % uniform noise 60 % of them stay right at 0.1, and 87 % become right at 0.05, with the same network in the
    end), and the network's rate follows the schedule all along. The method's own paper (`--preset own`)
    keeps it at 0.06 until labels are fixed and starts anew at 0.2 then, with two drops, in 320 epochs of which 70 are
    plain cross-entropy and the last 120 on fixed labels. Its λ, b and rate depend on the noise: λ and the rates
    are the defaults of the published code here, and b = 0.4 is said to be for class-dependent noise, 0.8 for uniform.
    (The published code has a = 0.4 and b = 0.1 as defaults, the paper's two values the other way round.)

    What comes before labels are learned is plain cross-entropy and no candidate for the result.
    """

    summary = "one label distribution per sample, learned by back-propagation beside the network"
    reference = "Yi and Wu 2019"
    Settings: ClassVar[type] = PencilSettings
    own: ClassVar = {
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
    }

    settings: PencilSettings

    def __init__(self, task: Task, settings: PencilSettings) -> None:
        super().__init__(task, settings)
        self.correct_from = round(settings.correct_from * self.epochs / 120)
        self.fix_from = round(settings.fix_from * self.epochs / 120)
        self.candidates_from = min(self.correct_from, self.epochs - 1)
        self.labels = SoftLabelTable(task.train.given, len(task.train.classes), settings.k, task.dtype)
        self.labels_learned = True

    def lr_at(self, epoch: int) -> float:
        """The schedule's rate; in the last stage that of `last_rate`, with the schedule's drops, where it is set."""
        lr, last_lr = super().lr_at(epoch), self.settings.last_lr
        return lr * last_lr / self.task.schedule.lr if last_lr and epoch >= self.fix_from else lr

    def begin_epoch(self, epoch: int) -> None:
        """Note the stage."""
        super().begin_epoch(epoch)
        self.on_given, self.labels_fixed = epoch < self.correct_from, epoch >= self.fix_from

    def step(self, batch: Batch) -> Tensor:
        """One step of the stage's loss, by the network and, in the middle stage, by the labels of the batch."""
        if self.on_given:
            return self.learn(batch.x, batch.given, batch.seed)
        a, b = (0.0, 0.0) if self.labels_fixed else (self.settings.a, self.settings.b)
        theta, y_tilde = trainable(self.net), self.labels.logits[batch.index].requires_grad_()
        logits = forward(self.net, batch.x, theta, seed=batch.seed, update_statistics=True)
        loss = pencil_loss(logits, y_tilde, batch.given, a=a, b=b).mean()
        if not self.labels_fixed:
            (by_label,) = torch.autograd.grad(loss, y_tilde, retain_graph=True)
            self.labels.logits[batch.index] -= self.settings.label_step * by_label
        descend(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def soft_labels(self) -> Tensor | None:
        """ŷ of every training row; uniform where no label was given."""
        return self.labels.soft_labels() if self.labels_learned else None

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Labels are no part of a model: of other rows there are none."""
        super().load_model(tensors)
        self.labels_learned = False

    def parts(self) -> dict[str, Part]:
        """The labels have a state too."""
        return super().parts() | {"labels": self.labels}
