"""MLNT, Meta-Learning based Noise-Tolerant training (Li et al. 2019, https://arxiv.org/abs/1812.05214).

Warm-up is cross-entropy on the given labels. Then, on each batch:

    for m = 1 … M:
        y_m ← y, with the labels of a share of the samples replaced by the given label of a random neighbor
        θ'_m ← θ − α ∇θ CE(f_θ(x), y_m)                                    look-ahead
    θ ← θ − SGD(∇θ [CE(f_θ(x), y) + (w/M) Σ_m KL(f_θ̃(x) ‖ f_θ'_m(x))])      through the look-aheads
    θ̃ ← γθ̃ + (1 − γ)θ

    x, y   a training batch and its given labels
    f, θ   the classifier (student) and its weights
    θ̃      weights of the teacher, an exponential moving average of θ; it predicts
    y_m    synthetic noisy labels
    α      step size of the look-ahead
    w      weight of the consistency loss; w and γ increase over the first epochs after warm-up

The gradient through a look-ahead is (I − αH_m) g_m, with the Hessian H_m of CE(f_θ(x), y_m) and the gradient g_m of the
consistency loss at θ'_m. The clean set is used only to select the epoch.

Cost: each look-ahead takes one forward and two backward passes and a Hessian-vector product, about three plain steps;
thirty for the paper's M = 10. Set `synthetic` to a smaller number to reduce it.

Departures from the paper:

-   Neighbors are computed once, among all labeled rows, from the features of the classifier at the end of warm-up. The
    paper uses a network trained beforehand, and the authors' code searches the current batch.
-   The paper's two updates, for consistency and then for cross-entropy, are one step on the sum, as in the authors'
    code. That code divides the consistency loss by the number of classes; the paper's equation does not, nor does this
    implementation.
-   The paper's second round, in which the first teacher selects samples for a new network, is left out.
-   The paper has no warm-up and uses a PreAct ResNet-32; `--recipe own` keeps the common warm-up.

The teacher has its own BatchNorm statistics, from forward passes over the training batches in train mode, as in the
authors' code: averages of the student's statistics would not match the teacher's weights.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import Theta, forward, trainable_parameters
from metalabelnet.core.hvp import LookAheadGradient
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import Differentiation, gradients
from metalabelnet.core.neighbors import NeighborTable
from metalabelnet.core.state_check import check_int, check_keys, check_tensor
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import MAX_CHUNK_SAMPLES
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.head import FeatureExtractor, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def consistency_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(q ‖ p) = Σ_j q_j (log q_j − log p_j) of every sample, with the teacher's q and the student's p.

    It is 0 if both agree, and −log p_k for a teacher that is one-hot at k. Its derivative by the student's logits is
    p − q.
    """
    log_p, log_q = functional.log_softmax(logits, dim=1), functional.log_softmax(teacher_logits, dim=1)
    return (log_q.exp() * (log_q - log_p)).sum(1)


def synthetic_labels(given: Tensor, neighbors: Tensor, share: float, draws: Tensor) -> Tensor:
    """Return the given labels with those of a random share of the samples replaced by the label of a neighbor.

    Parameters
    ----------
    given : Tensor of shape (N,)
        Given labels of the batch.
    neighbors : Tensor of shape (N, k)
        Given labels of the neighbors of each sample; one is drawn uniformly.
    share : float
        Share of the samples whose label is replaced.
    draws : Tensor of shape (2, N)
        Uniform draws from [0, 1): the samples of the smallest first draws are replaced, the second chooses the
        neighbor.
    """
    n, k = neighbors.shape
    chosen = draws[0].argsort()[: round(share * n)]
    which = (k * draws[1, chosen]).long().clamp_max(k - 1)  # k times a number below 1 can round to k
    labels = given.clone()
    labels[chosen] = neighbors[chosen, which]
    return labels


@dataclass(frozen=True, kw_only=True)
class MLNTSettings:
    """Settings with the paper's values for CIFAR-10."""

    synthetic: int = field(default=10, metadata={"help": "M, number of synthetic label sets per batch"})
    neighbors: int = field(default=10, metadata={"help": "number of neighbors from which a synthetic label is drawn"})
    share: float = field(default=0.5, metadata={"help": "share of a batch whose labels are replaced"})
    look_ahead: float = field(default=0.2, metadata={"help": "α, step size of the look-ahead"})
    consistency: float = field(
        default=2.0,
        metadata={"help": "weight of the consistency loss (in the paper lr 0.4 for it and 0.2 for cross-entropy)"},
    )
    ema: float = field(default=0.99, metadata={"help": "γ, EMA decay of the teacher during the ramp-up"})
    ema_later: float = field(default=0.999, metadata={"help": "γ, EMA decay of the teacher after the ramp-up"})
    ramp: int = field(default=20, metadata={"help": "epochs of ramp-up after warm-up, in a run of 120"})
    differentiation: Differentiation = field(
        default="double-backward",
        metadata={"help": "how the look-ahead is differentiated; exact gives the same gradient more slowly"},
    )

    def __post_init__(self) -> None:
        for name in ("synthetic", "neighbors"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} is out of range: give 1 or more")
        for name in ("share", "ema", "ema_later"):
            if getattr(self, name) > 1:
                raise InputError(f"{name}={getattr(self, name)} is out of range: give a number from 0 to 1")


class MLNT(Method):
    """Minimize cross-entropy on the given labels plus the consistency loss after look-aheads on synthetic labels.

    Attributes
    ----------
    teacher : torch.nn.Module or None
        Exponential moving average of the classifier; None in warm-up.
    neighbors : NeighborTable or None
        Row numbers of the nearest neighbors of each labeled row; None in warm-up.
    draws : Tensor of shape (2, M, rows)
        Uniform draws of the current epoch, from which the synthetic labels are made; empty in warm-up.
    weight, gamma : Tensor
        w and γ in the current epoch.
    """

    traits = MethodTraits(
        summary="consistency with a mean teacher after look-ahead steps on synthetic noisy labels",
        reference="Li et al. 2019",
        paper_url="https://arxiv.org/abs/1812.05214",
        has_warmup=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=20.0,  # measured with M = 2, scaled to the default M = 10
        own_recipe={
            "epochs": 120,
            "warmup": 44,
            "lr": 0.2,
            "lr_milestones": (80,),
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "batch_size": 128,
        },
    )
    Settings: ClassVar[type] = MLNTSettings

    settings: MLNTSettings

    averages_itself = True  # the teacher

    def __init__(self, task: Task, settings: MLNTSettings) -> None:
        super().__init__(task, settings)
        examples = to_input(task.train.x[:2], task.dtype)
        self.head = find_head(self.net, examples, len(task.train.classes), task.head)
        self.look_ahead_gradient = LookAheadGradient(settings.differentiation)
        self.teacher: nn.Module | None = None
        self.neighbors: NeighborTable | None = None
        self.weight, self.gamma = torch.tensor([0.0, settings.ema], dtype=task.dtype, device=task.train.given.device)
        self.draws = self.weight.new_empty(2, settings.synthetic, 0)

    def begin_epoch(self, epoch: int) -> None:
        """Create the teacher and find the neighbors at the end of warm-up; then draw random numbers, set w and γ."""
        since = epoch - self.task.recipe.warmup
        if since >= 0 and self.neighbors is None:
            self.teacher = self._copy_net()
            self.neighbors = self._find_neighbors()
            self.draws = self.weight.new_empty(2, self.settings.synthetic, len(self.task.train))
        super().begin_epoch(epoch)
        if since < 0:
            return
        self.draws.copy_(torch.rand(self.draws.shape, generator=generator(self.task.seed, "synthetic", epoch)))
        ramp = round(self.settings.ramp * self.task.recipe.epochs / 120)
        done = since / ramp if ramp and since < ramp else 1.0
        self.weight.fill_(self.settings.consistency * math.exp(-5 * (1 - done) ** 2))
        self.gamma.fill_(self.settings.ema if since < ramp else self.settings.ema_later)

    def phase(self) -> str:
        """Return "warm-up" or "consistency"."""
        return "warm-up" if self.teacher is None else "consistency"

    def _copy_net(self) -> nn.Module:
        return copy.deepcopy(self.net).requires_grad_(requires_grad=False)

    def _find_neighbors(self) -> NeighborTable:
        train, g = self.task.train, FeatureExtractor(self.net, self.head)
        labeled = (train.given != UNLABELED).nonzero()[:, 0]
        features = torch.cat(
            [g(to_input(train.x[rows], self.task.dtype)) for rows in torch.split(labeled, MAX_CHUNK_SAMPLES)]
        )
        return NeighborTable.from_features(labeled, features, self.settings.neighbors, len(train))

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the given labels in warm-up; after it, one with the consistency loss as well."""
        if self.teacher is None or self.neighbors is None:
            return self.cross_entropy_step(batch.views, batch.given, batch.seed)
        net, s, theta = self.net, self.settings, trainable_parameters(self.net)
        neighbor_labels = self.task.train.given[self.neighbors.rows[batch.index]]

        def logits_at(weights: Theta, *, first: bool = False) -> Tensor:
            return forward(net, batch.x, weights, seed=batch.seed, update_statistics=first)

        def consistency_and_gradient(y_m: Tensor) -> tuple[Tensor, Theta]:
            return self.look_ahead_gradient(
                theta=theta,
                logits=logits,
                logits_at=logits_at,
                training_loss=lambda z: cross_entropy(z, y_m).mean(),
                meta_loss=lambda weights: consistency_loss(logits_at(weights), teacher_logits).mean(),
                inner_step=s.look_ahead,
            )

        with torch.no_grad():
            teacher_logits = forward(self.teacher, batch.x, {}, seed=batch.seed, update_statistics=True)
        logits = logits_at(theta, first=True)
        consistency, total_gradient = logits.new_zeros(()), {name: torch.zeros_like(w) for name, w in theta.items()}
        for m in range(s.synthetic):
            draws = self.draws[:, m, batch.index]
            loss, gradient = consistency_and_gradient(synthetic_labels(batch.given, neighbor_labels, s.share, draws))
            consistency += self.weight / s.synthetic * loss
            for name, gradient_m in gradient.items():
                total_gradient[name] += self.weight / s.synthetic * gradient_m
        loss = self.recipe_loss(
            net,
            theta,
            lambda z, y: cross_entropy(z, y).mean(),
            batch.views,
            (batch.given,),
            batch.seed,
            logits=logits,
        )
        for name, gradient_ce in gradients(loss, theta).items():
            total_gradient[name] += gradient_ce
        apply_gradients(self.sgd, theta.values(), total_gradient.values())
        self._update_teacher()
        return loss.detach() + consistency

    @torch.no_grad()
    def _update_teacher(self) -> None:
        """Update θ̃ ← γθ̃ + (1 − γ)θ."""
        assert self.teacher is not None
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.gamma)

    def classifier(self) -> nn.Module:
        """Return the teacher; the student in warm-up."""
        return self.net if self.teacher is None else self.teacher

    def components(self) -> dict[str, Stateful]:
        """Add the teacher and the neighbors after warm-up."""
        later = {"teacher": self.teacher, "neighbors": self.neighbors}
        return super().components() | {name: c for name, c in later.items() if c is not None}

    def _restore_neighbors(self, state: dict[str, Any]) -> NeighborTable:
        """Return the table of a checkpoint, whose row numbers are checked."""
        check_keys(state, ("rows",), "neighbors")
        train, rows = self.task.train, state["rows"]
        labeled = int((train.given != UNLABELED).sum())
        check_tensor(
            rows, (len(train), min(self.settings.neighbors, max(1, labeled - 1))), torch.int64, "neighbors.rows"
        )
        check_int(int(rows.min()), -1, len(train) - 1, "neighbors.rows")
        check_int(int(rows.max()), -1, len(train) - 1, "neighbors.rows")
        return NeighborTable(rows)

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either phase."""
        if "neighbors" in state:
            self.teacher, self.neighbors = self._copy_net(), self._restore_neighbors(state["neighbors"])
            self.draws = self.weight.new_empty(2, self.settings.synthetic, len(self.task.train))
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the classifier and the teacher."""
        if any(name.startswith("teacher.") for name in tensors) and self.teacher is None:
            self.teacher = self._copy_net()
        super().load_model_state_dict(tensors)
