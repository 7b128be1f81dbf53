"""Joint Optimization (Tanaka et al. 2018, https://arxiv.org/abs/1803.11364).

First stage:

    θ ← θ − SGD(∇θ (L_c + a L_p + b L_e))
    after each epoch from `update_from`:   y ← mean of s over the last epochs, or its most likely class

Second stage, with a new network and fixed labels:

    θ ← θ − SGD(∇θ L_c)

    s     the prediction softmax(f_θ(x)); s̄ is its mean over the batch
    y     the label of a sample: at first the given label, one-hot; later a distribution
    π     the prior distribution of the classes
    L_c   −Σ_j y_j log s_j
    L_p   Σ_j π_j log(π_j / s̄_j)
    L_e   −Σ_j s_j log s_j
    a, b  weights of the prior loss and of the entropy loss (α and β in the paper)

Departures from the paper:

-   The predictions that form a label are made after each epoch, in eval mode and without augmentation. The authors'
    code uses those of the training steps.
-   A shorter schedule averages over fewer epochs, so that predictions of an untrained network are not included.
-   The paper trains the first stage with a high, constant learning rate (`--recipe own`: 0.08 for 200 epochs, labels
    updated from epoch 70; then 120 epochs from 0.2), which keeps the network from memorizing wrong labels before they
    are replaced. The common schedule divides the learning rate by 10 shortly before the first update.

The second stage repeats the schedule and only its epochs are candidates for the result: a run takes twice the epochs of
other methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.losses import entropy_loss
from metalabelnet.core.ranks import own_span
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import SoftLabelTable
from metalabelnet.core.state_check import check_int
from metalabelnet.data.disk_tensor import MAX_CHUNK_SAMPLES
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

ONE_HOT_LOGIT = 1e3  # label logits this far apart have a softmax of exactly 0 and 1, in float64 too


def soft_label_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return L_c = −Σ_j y_j log s_j of every sample (section 3 of the paper).

    It is −log s_k for a one-hot label k. Its minimum over s is at s = y, where it equals the entropy of y. The paper
    writes KL(y ‖ s), which differs by that entropy and has the same gradient.
    """
    return -(labels * functional.log_softmax(logits, dim=1)).sum(1)


def prior_loss(logits: Tensor, prior: Tensor) -> Tensor:
    """Return L_p = Σ_j π_j log(π_j / s̄_j) of a batch, a scalar.

    It is 0 if the mean prediction s̄ equals the prior, however confident the single predictions are. It keeps the
    network from assigning all samples to one class, which would minimize L_c with labels made of predictions. The mean
    is computed from logarithms, so the loss is finite even for a class that is never predicted; a class with prior 0
    does not contribute.
    """
    log_mean = functional.log_softmax(logits, dim=1).logsumexp(0) - math.log(len(logits))
    return torch.xlogy(prior, prior).sum() - (prior * log_mean).sum()


MAX_STORED_EPOCHS = 2**31  # of a checkpoint's count


class PredictionWindow:
    """Predictions for all labeled rows after each of the last epochs, as a ring buffer.

    It takes window × rows × classes numbers in the run's precision, in the memory of all ranks together and in each
    checkpoint of the first stage: for a window of ten in float32, 20 MB on CIFAR-10 and 200 MB on CIFAR-100.
    """

    def __init__(self, window: int, rows: int, classes: int, like: Tensor) -> None:
        own = own_span(rows)
        self.ring = like.new_zeros(window, own.stop - own.start, classes)
        self.rows, self.count = rows, 0

    def add(self, chunks: Iterable[Tensor]) -> None:
        """Store the predictions of an epoch, in place of the oldest. They come in chunks of consecutive rows."""
        table, start = ShardedTable(self.ring[self.count % len(self.ring)], self.rows), 0
        for p in chunks:
            table[torch.arange(start, start + len(p), device=p.device)] = p
            start += len(p)
        self.count += 1

    def mean(self) -> ShardedTable:
        """Return the mean over the stored epochs."""
        return ShardedTable(self.ring[: self.count].mean(0), self.rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"ring": ShardedTable(self.ring, self.rows, dim=1).state(), "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state."""
        check_int(state_dict["count"], 0, MAX_STORED_EPOCHS, "predictions.count")
        ShardedTable(self.ring, self.rows, dim=1).load(state_dict["ring"])
        self.count = state_dict["count"]


@dataclass(frozen=True, kw_only=True)
class JointOptimizationSettings:
    """Settings with the paper's values for uniform noise on CIFAR-10 (for class-dependent noise: a=0.8, b=0.4)."""

    a: float = field(default=1.2, metadata={"help": "a, weight of the prior loss (0.8 for class-dependent noise)"})
    b: float = field(default=0.8, metadata={"help": "b, weight of the entropy loss (0.4 for class-dependent noise)"})
    prior: Literal["uniform", "given"] = field(
        default="uniform", metadata={"help": "π, prior of the classes: uniform, or the frequencies of the given labels"}
    )
    labels: Literal["soft", "hard"] = field(
        default="soft", metadata={"help": "new labels: the mean prediction (soft) or its most likely class (hard)"}
    )
    window: float = field(
        default=10.0, metadata={"help": "epochs, in a run of 120, over which predictions are averaged"}
    )
    update_from: float = field(default=42.0, metadata={"help": "epoch, in a run of 120, of the first label update"})
    retrain: float = field(default=120.0, metadata={"help": "epochs of the second stage, for a first stage of 120"})
    retrain_lr: float = field(
        default=0.0,
        metadata={
            "help": "initial learning rate of the second stage, divided by 10 after each third; 0: as in the schedule"
        },
    )

    def __post_init__(self) -> None:
        if self.update_from > 120:
            raise InputError(f"update_from={self.update_from:g} is out of range: give an epoch from 0 to 120")


class JointOptimization(Method):
    """Train on labels that are replaced after every epoch, then train a new network on the final labels.

    Attributes
    ----------
    labels : SoftLabelTable
        The current labels of all training rows.
    has_labels : bool
        False after a model is loaded: the labels belong to the rows of the training run.
    predictions : PredictionWindow
        Recent predictions for the labeled rows (first stage).
    retraining : bool
        Whether the second stage has begun.
    """

    traits = MethodTraits(
        summary="labels replaced by the mean of recent predictions, then a new network trained on them",
        reference="Tanaka et al. 2018",
        paper_url="https://arxiv.org/abs/1803.11364",
        traceable=True,
        relative_cost=2.4,
        own_recipe={
            "epochs": 200,
            "lr": 0.08,
            "lr_milestones": (),
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "batch_size": 128,
            "settings": {"window": 6.0, "retrain": 72.0, "retrain_lr": 0.2},
        },
    )
    Settings: ClassVar[type] = JointOptimizationSettings

    settings: JointOptimizationSettings

    def __init__(self, task: Task, settings: JointOptimizationSettings) -> None:
        super().__init__(task, settings)
        first, given, classes = task.recipe.epochs, task.train.given, len(task.train.classes)
        self.update_from = round(settings.update_from * first / 120)
        self.window = max(1, round(settings.window * first / 120))
        self.epochs = first + max(1, round(settings.retrain * first / 120))
        self.candidates_from = first
        self.retraining = False
        self.rows = (given >= 0).nonzero()[:, 0]
        self.labels = SoftLabelTable(given, classes, ONE_HOT_LOGIT, task.dtype)
        self.has_labels = True
        self.predictions = PredictionWindow(self.window, len(self.rows), classes, self.labels.logits)
        counts = torch.bincount(given[self.rows], minlength=classes).to(task.dtype)
        self.prior = torch.full_like(counts, 1 / classes) if settings.prior == "uniform" else counts / counts.sum()

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the schedule, which restarts with the second stage."""
        since = epoch - self.candidates_from
        if since < 0:
            return super().lr_at(epoch)
        if not self.settings.retrain_lr:
            return super().lr_at(since)
        thirds = 3 * since // (self.epochs - self.candidates_from)
        return self.settings.retrain_lr * float(0.1**thirds)

    def begin_epoch(self, epoch: int) -> None:
        """Create the new network at the start of the second stage."""
        if epoch >= self.candidates_from and not self.retraining:
            self._start_retraining()
        super().begin_epoch(epoch)

    def _start_retraining(self) -> None:
        self.retraining = True
        self.net = self.task.make_net(1)
        self.sgd = self.make_sgd(self.net)
        self.averages.clear()
        self.average_weights("second_net", self.net)

    def phase(self) -> str:
        """Return "labels", or "retraining" in the second stage."""
        return "retraining" if self.retraining else "labels"

    def classifier(self) -> nn.Module:
        """Return the network of the current stage, or its EMA."""
        return self.prediction_net("second_net" if self.retraining else "net", self.net)

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the current labels, with L_p and L_e in the first stage."""

        def loss(logits: Tensor, y: Tensor) -> Tensor:
            l_c = soft_label_cross_entropy(logits, y).mean()
            if self.retraining:
                return l_c
            l_p, l_e = prior_loss(logits, self.prior), entropy_loss(logits).mean()
            return l_c + self.settings.a * l_p + self.settings.b * l_e

        return self.sgd_step(loss, batch.views, (self.labels[batch.index].softmax(1),), batch.seed)

    def end_epoch(self, epoch: int) -> None:
        """Predict the labeled rows, and replace their labels from epoch `update_from`."""
        if self.retraining or epoch + self.window < self.update_from:
            return  # these predictions would leave the window before the first update
        x = self.task.train.x
        self.predictions.add(self.logits(x[rows]).softmax(1) for rows in torch.split(self.rows, MAX_CHUNK_SAMPLES))
        if epoch + 1 >= self.update_from:
            means = self.predictions.mean()
            for places in means.chunks():
                mean = means[places]
                hard = ONE_HOT_LOGIT * functional.one_hot(mean.argmax(1), mean.shape[1]).to(mean.dtype)
                self.labels[self.rows[places]] = mean.log() if self.settings.labels == "soft" else hard

    def soft_labels(self) -> ClassTable | None:
        """Return the labels of all training rows, uniform for rows without a given label."""
        return self.labels.soft_labels() if self.has_labels else None

    def components(self) -> dict[str, Stateful]:
        """Return the network of the current stage and the labels, and in the first stage the recent predictions."""
        if self.retraining:
            return {"second_net": self.net, "sgd": self.sgd, "labels": self.labels, **self.average_components()}
        return super().components() | {"labels": self.labels, "predictions": self.predictions}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either stage."""
        if "second_net" in state and not self.retraining:
            self._start_retraining()
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the second network. Labels are not part of a model."""
        if not self.retraining:
            self._start_retraining()
        super().load_model_state_dict(tensors)
        self.has_labels = False
