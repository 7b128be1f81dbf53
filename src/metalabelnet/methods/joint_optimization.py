"""Joint Optimization: labels are replaced by what the network has lately predicted; then a new network learns them.

The symbols are

    s     the prediction softmax(z)
    y     the label of a sample: first the given one, one-hot; later a distribution
    π     the prior distribution of the classes
    a, b  weights of the prior loss and of the entropy loss (α and β in the paper)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.label_logits import SoftLabelTable
from metalabelnet.core.losses import entropy_loss
from metalabelnet.data.disk_tensor import CHUNK
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, Task

if TYPE_CHECKING:
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part

ONE_HOT = 1e3  # label logits this far apart have a softmax of exactly 0 and 1, in double precision too


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """L_c = −Σ_j y_j log s_j: cross-entropy to a soft label (Tanaka et al. 2018, section 3).

    −log s_k for a label that is one-hot at k; least, and equal to the entropy of y, where s = y. The paper writes
    KL(y ‖ s), which is less by that entropy: no weight sees the difference.
    """
    return -(labels * functional.log_softmax(logits, dim=1)).sum(1)


def prior_loss(logits: Tensor, prior: Tensor) -> Tensor:
    """L_p = Σ_j π_j log(π_j / s̄_j) with s̄ the mean prediction of the batch: one number for a batch.

    Zero where the batch is predicted as the prior says, however sure each prediction is. It keeps the network from
    giving all samples one class, which labels made of predictions would otherwise reward. The mean is taken in
    logarithms, so that a class nobody predicts costs much, never infinity; a class without prior costs nothing.
    """
    log_mean = functional.log_softmax(logits, dim=1).logsumexp(0) - math.log(len(logits))
    return torch.xlogy(prior, prior).sum() - (prior * log_mean).sum()


class Predictions:
    """The predictions for all labeled rows after each of the last few epochs, the oldest overwritten first.

    Takes window × rows × classes numbers in the run's precision, and as much in every checkpoint of the first stage:
    for a window of ten in single precision 20 MB on CIFAR-10, 200 MB on CIFAR-100.
    """

    def __init__(self, window: int, rows: int, classes: int, like: Tensor) -> None:
        self.ring = like.new_zeros(window, rows, classes)
        self.count = 0

    def add(self, probabilities: Tensor) -> None:
        """Keep an epoch's predictions."""
        self.ring[self.count % len(self.ring)] = probabilities
        self.count += 1

    def mean(self) -> Tensor:
        """The mean over the epochs there are."""
        return self.ring[: self.count].mean(0)

    def state_dict(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return {"ring": self.ring, "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over."""
        self.ring.copy_(state_dict["ring"])
        self.count = state_dict["count"]


@dataclass(frozen=True, kw_only=True)
class JointOptimizationSettings:
    """Settings with the paper's values for uniform noise on CIFAR-10 (class-dependent noise: a 0.8, b 0.4)."""

    a: float = field(default=1.2, metadata={"help": "weight of the prior loss; 0.8 for class-dependent noise"})
    b: float = field(default=0.8, metadata={"help": "weight of the entropy loss; 0.4 for class-dependent noise"})
    prior: Literal["uniform", "given"] = field(
        default="uniform", metadata={"help": "prior of the classes: all alike, or as frequent as the given labels"}
    )
    labels: Literal["soft", "hard"] = field(
        default="soft", metadata={"help": "new labels: the mean prediction (soft) or its most likely class (hard)"}
    )
    window: float = field(default=10.0, metadata={"help": "epochs, of 120, whose predictions a label is the mean of"})
    update_from: float = field(default=42.0, metadata={"help": "epoch, of 120, from which on labels are new ones"})
    retrain: float = field(default=120.0, metadata={"help": "epochs of the second stage to 120 of the first"})
    retrain_lr: float = field(
        default=0.0, metadata={"help": "rate of the second stage, a tenth after each third; 0: the schedule again"}
    )

    def __post_init__(self) -> None:
        if self.update_from > 120:
            raise InputError(f"update_from={self.update_from:g}: give an epoch of 120, or no label is ever replaced")


class JointOptimization(Method):
    """First stage: L = L_c + a·L_p + b·L_e, and labels replaced after every epoch; second: a new network, L_c alone.

    The labels of an epoch from `update_from` on are the mean of the predictions after the epochs before it, ten of 120,
    made in eval mode on the samples as they are. A shorter schedule averages over fewer epochs, so that no label is
    made of what an untrained network says. (The published code keeps the predictions of the training passes, where
    each sample is augmented and met by another state of the network.) The second stage has the whole schedule again,
    and only its epochs may be the result: a run takes twice the epochs of other methods.

    The paper trains its first stage at a high, constant rate (`--preset own`: 0.08, 200 epochs, update from 70; then
    120 epochs from rate 0.2), because that keeps the network from memorising wrong labels until they are replaced.
    The common recipe uses the shared schedule, which has dropped the rate shortly before the first update.
    """

    summary = "labels replaced by the mean of recent predictions, then a new network trained on them"
    reference = "Tanaka et al. 2018"
    Settings: ClassVar[type] = JointOptimizationSettings
    own: ClassVar = {
        "epochs": 200,
        "lr": 0.08,
        "lr_milestones": (),
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "batch_size": 128,
        "settings": {"window": 6.0, "retrain": 72.0, "retrain_lr": 0.2},
    }

    settings: JointOptimizationSettings

    def __init__(self, task: Task, settings: JointOptimizationSettings) -> None:
        super().__init__(task, settings)
        first, given, classes = task.schedule.epochs, task.train.given, len(task.train.classes)
        self.update_from = round(settings.update_from * first / 120)
        self.window = max(1, round(settings.window * first / 120))
        self.epochs = first + max(1, round(settings.retrain * first / 120))
        self.candidates_from = first
        self.retraining = False
        self.rows = (given >= 0).nonzero()[:, 0]
        self.labels = SoftLabelTable(given, classes, ONE_HOT, task.dtype)
        self.labels_learned = True
        self.predictions = Predictions(self.window, len(self.rows), classes, self.labels.logits)
        counts = torch.bincount(given[self.rows], minlength=classes).to(task.dtype)
        self.prior = torch.full_like(counts, 1 / classes) if settings.prior == "uniform" else counts / counts.sum()

    def lr_at(self, epoch: int) -> float:
        """The schedule's rate, which starts anew with the second stage."""
        since = epoch - self.candidates_from
        if since < 0:
            return super().lr_at(epoch)
        if not self.settings.retrain_lr:
            return super().lr_at(since)
        thirds = 3 * since // (self.epochs - self.candidates_from)
        return self.settings.retrain_lr * float(0.1**thirds)

    def begin_epoch(self, epoch: int) -> None:
        """At the start of the second stage, make the new network."""
        if epoch >= self.candidates_from and not self.retraining:
            self._start_anew()
        super().begin_epoch(epoch)

    def _start_anew(self) -> None:
        self.retraining = True
        self.net = self.task.make_net(1)
        self.sgd = self.make_sgd(self.net)

    def step(self, batch: Batch) -> Tensor:
        """One step on the labels as they are, with the regularisers in the first stage."""
        y = self.labels.logits[batch.index].softmax(1)

        def loss(logits: Tensor) -> Tensor:
            l_c = soft_cross_entropy(logits, y).mean()
            if self.retraining:
                return l_c
            l_p, l_e = prior_loss(logits, self.prior), entropy_loss(logits).mean()
            return l_c + self.settings.a * l_p + self.settings.b * l_e

        return self.minimise(loss, batch.x, batch.seed)

    def end_epoch(self, epoch: int) -> None:
        """Predict the labeled rows, and replace their labels once it is time."""
        if self.retraining or epoch + self.window < self.update_from:
            return  # nothing of this epoch would ever be in a label
        x = self.task.train.x
        self.predictions.add(torch.cat([self.logits(x[part]).softmax(1) for part in torch.split(self.rows, CHUNK)]))
        if epoch + 1 >= self.update_from:
            mean = self.predictions.mean()
            hard = ONE_HOT * functional.one_hot(mean.argmax(1), mean.shape[1]).to(mean.dtype)
            self.labels.logits[self.rows] = mean.log() if self.settings.labels == "soft" else hard

    def soft_labels(self) -> Tensor | None:
        """The label of every training row; uniform where none was given."""
        return self.labels.soft_labels() if self.labels_learned else None

    def parts(self) -> dict[str, Part]:
        """The first network with the predictions it has made, or the second; the labels in both."""
        if self.retraining:
            return {"second": self.net, "sgd": self.sgd, "labels": self.labels}
        return super().parts() | {"labels": self.labels, "predictions": self.predictions}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there, in the stage it was."""
        if "second" in state and not self.retraining:
            self._start_anew()
        super().load_state(state)

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Take over the second network, the only one that is ever a result; of other rows there are no labels."""
        if not self.retraining:
            self._start_anew()
        super().load_model(tensors)
        self.labels_learned = False
