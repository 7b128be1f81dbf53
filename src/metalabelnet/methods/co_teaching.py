"""Co-teaching: two networks, each learning from the samples on which the other has the smallest losses.

τ     the noise rate
R(t)  the share of a batch that is kept in epoch t: 1 − τ·min(t/ramp, 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from metalabelnet.core.algorithm import descend
from metalabelnet.core.forward_pass import forward, trainable
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.tensor_state import Estimates
from metalabelnet.core.transition_matrix import class_prior, counted, noise_rate
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.methods.cross_fit import Halves
from metalabelnet.methods.method import Method, Task
from metalabelnet.nets.ensemble import Ensemble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part

COUNTABLE = 30  # a rate counted on fewer samples has a standard error of up to 0.09: an estimate is then better


def small_loss(losses: Tensor, share: Tensor) -> Tensor:
    """Weights that make a sum the mean over the ⌊share·n⌋ smallest of n losses, one at least; of equal ones the first.

    1/n each at share 1. The share is a tensor and the others get weight 0, so that a step has one shape for all
    shares. (The sum keeps 0.7·10 = 6.999… at 7.)
    """
    count = (share * len(losses) + 1e-9).floor().clamp_min(1)
    rank = losses.argsort(stable=True).argsort()
    return (rank < count).to(losses) / count.to(losses)


def remembered(rate: float, epoch: float, ramp: float) -> float:
    """R = 1 − τ·min(t/ramp, 1) (Han et al. 2018, Algorithm 1). All at first; 1 − τ from epoch `ramp` on."""
    return 1 - rate * min(epoch / ramp, 1.0)


@dataclass(frozen=True, kw_only=True)
class CoTeachingSettings:
    """The noise rate, and how soon it is believed."""

    noise_rate: float | Literal["auto"] = field(
        default="auto",
        metadata={
            "help": "τ, a share; auto: counted on clean samples with both labels, else estimated in a stage first"
        },
    )
    ramp: float = field(default=10.0, metadata={"help": "epochs, of 120, in which the share dropped grows to τ"})

    def __post_init__(self) -> None:
        if self.noise_rate != "auto" and not 0 <= self.noise_rate < 1:
            raise InputError(f"noise_rate={self.noise_rate}: it is a share in [0, 1), 0.4 for 40 %; or give auto")


class CoTeaching(Method):
    """Each network minimises the mean cross-entropy over the samples that the other one keeps.

    Networks learn clean samples first, so that a small loss speaks for a right label; that the other network chooses
    keeps a network's mistakes from confirming themselves. The prediction is the mean of the two networks'
    probabilities. τ is the training labels' noise rate, which the paper takes as known: unless it is given, it is
    counted where clean samples carry a given label too, and otherwise estimated in a stage of its own, whose networks
    are then left behind.

    The paper trains 200 epochs with Adam, its rate falling linearly to 0 from epoch 80 on, and ramps over 10 of them.
    Here both presets use the schedule's SGD, and two drops stand in for the fall.
    """

    summary = "two networks that choose small-loss samples for each other"
    reference = "Han et al. 2018"
    traceable = True
    Settings: ClassVar[type] = CoTeachingSettings
    own: ClassVar[Mapping[str, Any]] = {
        "epochs": 200,
        "lr_milestones": (80, 140),
        "batch_size": 128,
        "settings": {"ramp": 6.0},
    }

    settings: CoTeachingSettings

    def __init__(self, task: Task, settings: CoTeachingSettings) -> None:
        super().__init__(task, settings)
        self.peer = task.make_net(1)
        self.peer_sgd = self.make_sgd(self.peer)
        self.both = (task.clean.true != UNLABELED) & (task.clean.given != UNLABELED)
        estimates = settings.noise_rate == "auto" and int(self.both.sum()) < COUNTABLE
        self.halves = Halves(task, self.make_sgd, first_net=2) if estimates else None
        self.found: Estimates | None = None
        self.candidates_from = self.halves.epochs if self.halves else 0
        self.epochs += self.candidates_from
        self.share = torch.ones((), dtype=torch.float64, device=task.train.x.device)

    @classmethod
    def reads_clean(cls, settings: CoTeachingSettings) -> bool:
        """To find the noise rate, where it is not given."""
        return settings.noise_rate == "auto"

    def lr_at(self, epoch: int) -> float:
        """The schedule; a stage of estimation comes before it, at its first rates."""
        first = self.candidates_from
        return self.task.schedule.lr_at(epoch - first if epoch >= first else epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Once τ is known, set the share that is kept."""
        first, schedule = self.candidates_from, self.task.schedule
        if epoch >= first and self.found is None:
            self._start(self._noise_rate())
        if self.found is not None:
            ramp = max(1, round(self.settings.ramp * schedule.epochs / 120))
            self.share.fill_(remembered(float(self.found.get_buffer("noise_rate")), epoch - first, ramp))
        super().begin_epoch(epoch)

    def _start(self, rate: float) -> None:
        """Leave the estimation behind."""
        self.halves = None
        self.found = Estimates(noise_rate=self.share.new_tensor(rate))

    def _noise_rate(self) -> float:
        if self.settings.noise_rate != "auto":
            return self.settings.noise_rate
        if self.halves is not None:
            rate = noise_rate(*self.halves.estimate())
        else:
            classes, clean, given = len(self.task.train.classes), self.task.clean, self.task.train.given
            true = clean.true[self.both]
            T = counted(true, clean.given[self.both], classes).T
            labels = torch.bincount(given[given != UNLABELED], minlength=classes).to(T)
            rate = noise_rate(T, class_prior(T, labels, torch.bincount(true, minlength=classes).to(T)))
        return min(max(rate, 0.0), 1 - 1 / len(self.task.train.classes))

    def phase(self) -> str:
        """Estimating, or teaching."""
        return "estimate" if self.halves is not None else "teach"

    def step(self, batch: Batch) -> Tensor:
        """A step of each network on the samples the other one keeps."""
        if self.halves is not None:
            return self.halves.step(batch)
        f, g = trainable(self.net), trainable(self.peer)
        f_losses = cross_entropy(forward(self.net, batch.x, f, seed=batch.seed, update_statistics=True), batch.given)
        g_losses = cross_entropy(
            forward(self.peer, batch.x, g, seed=batch.seed + 1, update_statistics=True), batch.given
        )
        f_loss = (small_loss(g_losses.detach(), self.share) * f_losses).sum()
        g_loss = (small_loss(f_losses.detach(), self.share) * g_losses).sum()
        descend(self.sgd, f.values(), gradients(f_loss, f).values())
        descend(self.peer_sgd, g.values(), gradients(g_loss, g).values())
        return (f_loss + g_loss).detach() / 2

    def end_epoch(self, epoch: int) -> None:
        """Gather what the estimating networks say, in their stage."""
        if self.halves is not None:
            self.halves.end_epoch()

    def logits(self, x: Tensor) -> Tensor:
        """The logarithm of the two networks' mean probabilities."""
        return super().logits(x) if self.halves is None else self.halves.logits(x)

    def reader(self) -> nn.Module:
        """One of those that estimate, while they do."""
        return self.net if self.halves is None else self.halves.nets[0]

    def classifier(self) -> nn.Module:
        """Both networks as one."""
        return Ensemble(self.net, self.peer)

    def parts(self) -> dict[str, Part]:
        """Both networks; then τ, before the networks that estimate it."""
        pair: dict[str, Part] = {"peer": self.peer, "peer_sgd": self.peer_sgd}
        found: dict[str, Part] = {} if self.found is None else {"found": self.found}
        return super().parts() | pair | found | ({} if self.halves is None else self.halves.parts())

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there, in the stage it was."""
        if "found" in state:
            self._start(0.0)
        super().load_state(state)

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Take over both networks, and τ."""
        if self.found is None:
            self._start(0.0)
        super().load_model(tensors)
