"""T-Revision (Xia et al. 2019, https://arxiv.org/abs/1906.00189).

    estimate:   θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y);   then read T off the predictions at anchor points
    reweight:   θ ← θ − SGD(∇θ (1/N) Σ_i w_i (−log p_y)),   w = p_y / (pT)_y, a constant
    revise:     θ, ΔT ← θ, ΔT − Adam(∇ (1/N) Σ_i w_i (−log p_y)),   w = p_y / (p(T + ΔT))_y

    p     the prediction softmax(f_θ(x)) of the true class
    y     the given label
    T     the transition matrix: T_ij is the probability that a sample of class i is given label j
    pT    the prediction of the given label
    w     the importance weight of the sample: the expected weighted loss over noisy labels is that over clean labels
    ΔT    the revision of T, at first 0

As in the paper, a tenth of the labeled rows is held out: they have no part in the loss, and the second and the third
stage start from the epoch of the previous one that predicts their given labels best, the last one if several do. Only
epochs of the last stage are candidates for the result. The clean set is used only to select among them.

How far T moves: ∂L/∂ΔT_ij is −w p_i (−log p_j)/(p(T + ΔT))_j ≤ 0 for a sample with label j (`importance_weights`). So
entries only grow, without bound, and by about the learning rate in each step of Adam. The paper's 5·10⁻⁷ for 200 epochs
of 352 steps moves each by at most 0.035. In a stage of n epochs the learning rate is 5·10⁻⁷ · 200/n.

Departures from the paper:

-   The paper selects the epoch of the last stage on the held-out rows, too.
-   The first two stages have the recipe's SGD, whose schedule restarts with the second. In the authors' code the first
    has no momentum.
-   Anchor points are below the 97th percentile as in `forward`, and in the code for CIFAR-10.
-   The current version of the code adds ΔT once per sample of a batch, so that the i-th sample is weighted with
    T + iΔT, and its vectorized loss has no gradient with respect to ΔT. Here, as in the paper, all samples are weighted
    with T + ΔT, and ΔT is learned through w.
-   The common schedule revises for 12 epochs in a run of 120 and estimates for 20. The paper (`--recipe own`) has 20,
    200 and 200 epochs. Its network is a ResNet-18.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.optimizers import Adam
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.core.transition_matrix import transitions_from_anchors
from metalabelnet.data.disk_tensor import map_chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.run_options import CIFAR10_SCHEDULE
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

PUBLISHED_REVISION_EPOCHS = 200
HELD_OUT_SHARE = 0.1  # of the labeled rows


def importance_weights(logits: Tensor, labels: Tensor, T: Tensor) -> Tensor:
    """Return w = p_y / (pT)_y of every sample: 1 if T is the identity, at most 1/T_yy.

    If p is the posterior of the true class, the mean of w·loss over given labels drawn from pT is the mean of the loss
    over true labels drawn from p.
    """
    p = logits.softmax(1)
    noisy = (p @ T.to(p)).clamp_min(torch.finfo(p.dtype).tiny)
    return (p / noisy).gather(1, labels[:, None])[:, 0]


class RevisedTransitions(nn.Module):
    """T and its revision ΔT; the forward pass returns T + ΔT."""

    def __init__(self, T: Tensor) -> None:
        super().__init__()
        self.T: Tensor
        self.register_buffer("T", T)
        self.delta = nn.Parameter(torch.zeros_like(T))

    def forward(self) -> Tensor:
        """Return T + ΔT."""
        return self.T + self.delta


@dataclass(frozen=True, kw_only=True)
class TRevisionSettings:
    """Settings with the paper's learning rate and the stages of the common schedule."""

    estimate: float = field(default=20.0, metadata={"help": "epochs of the first stage, for a second stage of 120"})
    revise: float = field(default=12.0, metadata={"help": "epochs of the last stage, for a second stage of 120"})
    revision_lr: float = field(
        default=5e-7, metadata={"help": "learning rate of the last stage, if it has 200 epochs; larger if it has fewer"}
    )


class TRevision(Method):
    """Estimate T, train with importance weights, then revise T together with the network.

    Attributes
    ----------
    transitions : RevisedTransitions or None
        T and ΔT; None in the first stage.
    adam : Adam or None
        The optimizer of the last stage.
    revise_from : int
        First epoch of the last stage.
    held_out : Tensor
        Whether a training row is held out.
    best : TensorState
        The weights of the best epoch of the current stage by the accuracy on held-out rows, and that accuracy.
    """

    traits = MethodTraits(
        summary="importance weights from an estimated transition matrix, which is then revised with the network",
        reference="Xia et al. 2019",
        paper_url="https://arxiv.org/abs/1906.00189",
        traceable=True,
        relative_cost=1.3,
        own_recipe={**CIFAR10_SCHEDULE, "epochs": 200, "settings": {"estimate": 12.0, "revise": 120.0}},
    )
    Settings: ClassVar[type] = TRevisionSettings

    settings: TRevisionSettings

    def __init__(self, task: Task, settings: TRevisionSettings) -> None:
        super().__init__(task, settings)
        epochs = task.recipe.epochs
        self.reweight_from = max(1, round(settings.estimate * epochs / 120))
        self.revise_from = self.reweight_from + epochs
        self.epochs = self.revise_from + max(1, round(settings.revise * epochs / 120))
        self.candidates_from = self.revise_from
        self.transitions: RevisedTransitions | None = None
        self.adam: Adam | None = None
        labeled = (task.train.given != UNLABELED).nonzero()[:, 0]
        order = torch.randperm(len(labeled), generator=generator(task.seed, "t-revision")).to(labeled.device)
        self.held_out = torch.zeros_like(task.train.given, dtype=torch.bool)
        self.held_out[labeled[order[: max(1, int(HELD_OUT_SHARE * len(labeled)))]]] = True
        weights = {f"net.{name}": tensor.clone() for name, tensor in self.net.state_dict().items()}
        self.best = TensorState(accuracy=torch.tensor(-1.0, device=labeled.device), **weights)

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the stage; that of the recipe restarts with the second stage."""
        if epoch >= self.revise_from:
            return self.settings.revision_lr * PUBLISHED_REVISION_EPOCHS / (self.epochs - self.revise_from)
        return super().lr_at(epoch - self.reweight_from if epoch >= self.reweight_from else epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Estimate T at the end of the first stage, and start the last."""
        if epoch >= self.reweight_from and self.transitions is None:
            self._start_reweighting(self._estimate())
        if epoch >= self.revise_from and self.adam is None:
            self._restart_from_best()
            self._start_revision()
        super().begin_epoch(epoch)

    def _estimate(self) -> Tensor:
        """Return T by anchor points, from the best epoch of the first stage."""
        self._restart_from_best()
        train = self.task.train
        x = train.take(((train.given != UNLABELED) & ~self.held_out).nonzero()[:, 0]).x
        return transitions_from_anchors(map_chunks(self.logits, x).softmax(1))

    def _restart_from_best(self) -> None:
        """Load the weights of the best epoch into the network, and restart its optimizer and EMA."""
        self.net.load_state_dict({name: self.best[f"net.{name}"] for name in self.net.state_dict()})
        self.sgd = self.make_sgd(self.net)
        self.average_weights("net", self.net)
        self.best["accuracy"].fill_(-1.0)

    def _start_reweighting(self, T: Tensor) -> None:
        self.transitions = RevisedTransitions(T.to(self.task.train.given.device, self.task.dtype))

    def _start_revision(self) -> None:
        assert self.transitions is not None
        self.adam = Adam(
            [*trainable_parameters(self.net).values(), self.transitions.delta],
            lr=self.lr_at(self.revise_from),
            weight_decay=self.task.recipe.weight_decay,
        )

    def phase(self) -> str:
        """Return "estimate", "reweight" or "revise": the stage."""
        if self.transitions is None:
            return "estimate"
        return "reweight" if self.adam is None else "revise"

    def step(self, batch: Batch) -> Tensor:
        """Take one step of the current stage. Held-out rows have weight 0."""
        T = None if self.transitions is None else self.transitions()
        revise = self.adam is not None

        def loss_of(logits: Tensor, y: Tensor, keep: Tensor) -> Tensor:
            losses = cross_entropy(logits, y)
            if T is not None:
                w = importance_weights(logits, y, T)
                losses = (w if revise else w.detach()) * losses
            return (keep * losses).sum() / keep.sum().clamp_min(1)

        targets = (batch.given, (~self.held_out[batch.index]).to(self.task.dtype))
        if self.adam is None or self.transitions is None:
            return self.sgd_step(loss_of, batch.views, targets, batch.seed)
        theta = trainable_parameters(self.net)
        loss = self.recipe_loss(self.net, theta, loss_of, batch.views, targets, batch.seed)
        learned = theta | {"delta": self.transitions.delta}
        apply_gradients(self.adam, learned.values(), gradients(loss, learned).values())
        return loss.detach()

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> None:
        """Keep the weights that predict, if they have the highest accuracy so far on the held-out rows."""
        rows = self.task.train.take(self.held_out.nonzero()[:, 0])
        p = map_chunks(self.logits, rows.x).softmax(1)
        noisy = p if self.transitions is None else p @ self.transitions()
        accuracy = (noisy.argmax(1) == rows.given).float().mean()
        if bool(accuracy >= self.best["accuracy"]):
            self.best["accuracy"].copy_(accuracy)
            for name, tensor in self.classifier().state_dict().items():
                self.best[f"net.{name}"].copy_(tensor)

    def components(self) -> dict[str, Stateful]:
        """Add the best epoch, T and ΔT after the first stage, and their optimizer in the last."""
        later = {"best": self.best, "transitions": self.transitions, "adam": self.adam}
        return super().components() | {name: c for name, c in later.items() if c is not None}

    def _empty_transitions(self) -> Tensor:
        return torch.eye(len(self.task.train.classes))

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of any stage."""
        if "transitions" in state and self.transitions is None:
            self._start_reweighting(self._empty_transitions())
        if "adam" in state and "transitions" in state and self.adam is None:
            self._start_revision()
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the network, T and ΔT."""
        if self.transitions is None:
            self._start_reweighting(self._empty_transitions())
        super().load_model_state_dict(tensors)
