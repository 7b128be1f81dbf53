"""MLNT: a classifier that agrees with its own average, even after a step on labels made worse on purpose."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from metalabelnet.core.algorithm import descend
from metalabelnet.core.forward_pass import Theta, forward, trainable
from metalabelnet.core.hvp import LookAheadGradient
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import Differentiation, gradients
from metalabelnet.core.neighbors import NeighbourTable
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import CHUNK
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, Task
from metalabelnet.nets.head import Extractor, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


def consistency_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(q ‖ p) = Σ_j q_j (log q_j − log p_j), from the teacher's q to the student's p (Li et al. 2019).

    Zero where they agree; −log p_k where the teacher is one-hot at k. By the student's logits: p − q.
    """
    log_p, log_q = functional.log_softmax(logits, dim=1), functional.log_softmax(teacher_logits, dim=1)
    return (log_q.exp() * (log_q - log_p)).sum(1)


def synthetic_labels(given: Tensor, neighbours: Tensor, share: float, randomness: torch.Generator) -> Tensor:
    """The given labels with a share of the samples, drawn at random, taking the label of one of their neighbours.

    given       (N,) the labels of the batch
    neighbours  (N, k) the given labels of the neighbours; each is as likely
    """
    n, k = neighbours.shape
    chosen = torch.randperm(n, generator=randomness, device=given.device)[: round(share * n)]
    which = torch.randint(k, chosen.shape, generator=randomness, device=given.device)
    labels = given.clone()
    labels[chosen] = neighbours[chosen, which]
    return labels


@dataclass(frozen=True, kw_only=True)
class MLNTSettings:
    """The paper's values for CIFAR-10."""

    synthetic: int = field(default=10, metadata={"help": "M, sets of synthetic labels for each batch"})
    neighbours: int = field(default=10, metadata={"help": "neighbours from which a synthetic label may come"})
    share: float = field(default=0.5, metadata={"help": "share of a batch that takes a neighbour's label"})
    look_ahead: float = field(default=0.2, metadata={"help": "α, the length of the look-ahead step"})
    consistency: float = field(
        default=2.0,
        metadata={"help": "weight of the consistency loss: the paper's rates, 0.4 for it and 0.2 for cross-entropy"},
    )
    ema: float = field(default=0.99, metadata={"help": "γ, how much the teacher keeps in a step, while ramping up"})
    ema_later: float = field(default=0.999, metadata={"help": "γ from then on"})
    ramp: int = field(default=20, metadata={"help": "epochs of ramping up, of 120; fewer in a shorter run"})
    differentiation: Differentiation = field(
        default="double-backward",
        metadata={"help": "how the look-ahead is differentiated; exact gives the same, slower"},
    )

    def __post_init__(self) -> None:
        for name in ("synthetic", "neighbours"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} is too small: the least is 1")
        for name in ("share", "ema", "ema_later"):
            if getattr(self, name) > 1:
                raise InputError(f"{name}={getattr(self, name)} is too large: give a number from 0 to 1")


class MLNT(Method):
    """Cross-entropy on the given labels, and beside it a test of what synthetic noise would do.

    After warm-up a teacher follows the classifier: θ̃ ← γθ̃ + (1 − γ)θ after every step. For each batch M sets of
    synthetic labels y_m are made, in which half the samples have the given label of one of their 10 nearest
    neighbours. Each set gives a look-ahead, and θ goes against

        ∇θ [ CE(f_θ(x), y) + (w/M) Σ_m KL(f_θ̃(x) ‖ f_θ'm(x)) ] ,    θ'm = θ − α ∇θ CE(f_θ(x), y_m)

    through the look-ahead: (I − αH_m) g_m for each m. w and γ change over the first epochs after warm-up.
    No clean sample is used but to select the epoch. The teacher is what predicts.

    The cost is M look-aheads, each with a backward pass, a pass over the batch and back, and a Hessian-vector product:
    about three plain steps each, thirty for the paper's M = 10. `synthetic` makes it as cheap as you like.

    Where this differs from the paper: neighbours are looked for once, among all labeled rows (the authors' code
    searches the batch at hand), in the features of the classifier at the end of warm-up, which takes the place of
    a network trained beforehand. The two updates of the paper, for consistency and then for cross-entropy, are one
    step on the sum, as in the authors' code; their code divides the consistency by the number of classes, their
    equation does not, nor is it done here. The second round of the paper, in which the first teacher picks samples for
    a new network, is left out. The paper's own settings are with a PreAct ResNet-32; they have no
    warm-up, and the common one is kept.

    The teacher's BatchNorm has statistics of its own: like the authors', it goes over the training batches in train
    mode. An average of the student's statistics would be those of other weights.
    """

    summary = "agreement with its own average after look-ahead steps on labels made noisier"
    reference = "Li et al. 2019"
    Settings: ClassVar[type] = MLNTSettings
    has_warmup = True
    own: ClassVar[dict[str, Any]] = {
        "epochs": 120,
        "warmup": 44,
        "lr": 0.2,
        "lr_milestones": (80,),
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "batch_size": 128,
    }

    settings: MLNTSettings

    def __init__(self, task: Task, settings: MLNTSettings) -> None:
        super().__init__(task, settings)
        few = to_input(task.train.x[:2], task.dtype)
        self.head = find_head(self.net, few, len(task.train.classes), task.head)
        self.look_ahead_gradient = LookAheadGradient(settings.differentiation)
        self.teacher: nn.Module | None = None
        self.neighbours: NeighbourTable | None = None
        self.weight, self.gamma = 0.0, settings.ema

    def begin_epoch(self, epoch: int) -> None:
        """At the end of warm-up, copy the classifier as the teacher and find the neighbours."""
        since = epoch - self.task.schedule.warmup
        if since >= 0 and self.neighbours is None:
            self.teacher = self._copy()
            self.neighbours = self._find_neighbours()
        super().begin_epoch(epoch)
        ramp = round(self.settings.ramp * self.task.schedule.epochs / 120)
        done = since / ramp if ramp and since < ramp else 1.0
        self.weight = self.settings.consistency * math.exp(-5 * (1 - done) ** 2)
        self.gamma = self.settings.ema if since < ramp else self.settings.ema_later

    def _copy(self) -> nn.Module:
        return copy.deepcopy(self.net).requires_grad_(requires_grad=False)

    def _find_neighbours(self) -> NeighbourTable:
        train, g = self.task.train, Extractor(self.net, self.head)
        labeled = (train.given != UNLABELED).nonzero()[:, 0]
        features = torch.cat([g(to_input(train.x[rows], self.task.dtype)) for rows in torch.split(labeled, CHUNK)])
        return NeighbourTable.among(labeled, features, self.settings.neighbours, len(train))

    def step(self, batch: Batch) -> Tensor:
        """Warm-up on the given labels, or a step on them and on the consistency after M look-aheads."""
        if self.teacher is None or self.neighbours is None:
            return self.learn(batch.x, batch.given, batch.seed)
        net, s, theta = self.net, self.settings, trainable(self.net)
        near = self.task.train.given[self.neighbours.rows[batch.index]]

        def logits_at(weights: Theta, *, first: bool = False) -> Tensor:
            return forward(net, batch.x, weights, seed=batch.seed, update_statistics=first)

        def consistency_after(y_m: Tensor) -> tuple[Tensor, Theta]:
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
        consistency, by_theta = logits.new_zeros(()), {name: torch.zeros_like(w) for name, w in theta.items()}
        for m in range(s.synthetic):
            randomness = generator(batch.seed, "synthetic", m, device=batch.x.device)
            loss, gradient = consistency_after(synthetic_labels(batch.given, near, s.share, randomness))
            consistency += self.weight / s.synthetic * loss
            for name, along in gradient.items():
                by_theta[name] += self.weight / s.synthetic * along
        loss = cross_entropy(logits, batch.given).mean()
        for name, along in gradients(loss, theta).items():
            by_theta[name] += along
        descend(self.sgd, theta.values(), by_theta.values())
        self._follow()
        return loss.detach() + consistency

    @torch.no_grad()
    def _follow(self) -> None:
        """θ̃ ← γθ̃ + (1 − γ)θ."""
        assert self.teacher is not None
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.gamma)

    def classifier(self) -> nn.Module:
        """The teacher, once there is one."""
        return self.net if self.teacher is None else self.teacher

    def parts(self) -> dict[str, Part]:
        """After warm-up, the teacher and the neighbours too."""
        later = {"teacher": self.teacher, "neighbours": self.neighbours}
        return super().parts() | {name: part for name, part in later.items() if part is not None}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there, in the phase it was."""
        if "neighbours" in state:
            self.teacher, self.neighbours = self._copy(), NeighbourTable(state["neighbours"]["rows"])
        super().load_state(state)

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Take over classifier and teacher."""
        if any(name.startswith("teacher.") for name in tensors) and self.teacher is None:
            self.teacher = self._copy()
        super().load_model(tensors)
