"""Co-teaching (Han et al. 2018, https://arxiv.org/abs/1804.06872).

    R ← 1 − τ·min(t/ramp, 1)
    D_f ← the R·N samples of the batch with the smallest loss of f;   D_g ← the same for g
    w_f ← w_f − SGD(∇ mean of the losses of f over D_g)
    w_g ← w_g − SGD(∇ mean of the losses of g over D_f)

    f, g   two networks with weights w_f, w_g; the result is the mean of their probabilities
    τ      noise rate of the given labels
    t      epoch
    R      share of a batch that is kept
    N      batch size

Networks fit clean samples first, so a small loss indicates a correct label. Each network selects for the other, so that
a network does not reinforce its own mistakes.

Departures from the paper: the paper takes τ as known. Here, unless it is given, τ is counted on clean samples that
have a given label as well, or else estimated in a first stage of cross-fitting (`cross_fit`), whose networks are then
discarded. The paper trains 200 epochs with Adam and a learning rate that falls linearly to 0 from epoch 80. Here the
recipes `paper` and `own` use the schedule's SGD, with two milestones in place of the linear decay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.tensor_state import Estimates
from metalabelnet.core.transition_matrix import class_prior, count_transitions, noise_rate
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.methods.cross_fit import CrossFit
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.ensemble import Ensemble

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

MIN_COUNTED_SAMPLES = 30  # with fewer, a counted rate has a standard error of up to 0.09; the estimate is better


def small_loss_weights(losses: Tensor, share: Tensor) -> Tensor:
    """Return weights for which the weighted sum is the mean of the ⌊share·n⌋ smallest of n losses, at least one.

    Ties go to the first. The share is a tensor and the other losses get weight 0, so that a step has the same shapes
    for every share. Adding 1e-9 corrects rounding: 0.7·10 = 6.999… gives 7.
    """
    count = (share * len(losses) + 1e-9).floor().clamp_min(1)
    rank = losses.argsort(stable=True).argsort()
    return (rank < count).to(losses) / count.to(losses)


def keep_rate(noise_rate: float, epoch: float, ramp: float) -> float:
    """Return R = 1 − τ·min(t/ramp, 1) (Algorithm 1 of the paper): 1 at first, 1 − τ from epoch `ramp`."""
    return 1 - noise_rate * min(epoch / ramp, 1.0)


@dataclass(frozen=True, kw_only=True)
class CoTeachingSettings:
    """Settings with the paper's ramp; the paper takes the noise rate as known."""

    noise_rate: float | Literal["auto"] = field(
        default="auto",
        metadata={
            "help": "τ, noise rate of the given labels, from 0 to 1; auto: counted on clean samples that have a given "
            "label as well, or else estimated by cross-fitting"
        },
    )
    ramp: float = field(
        default=10.0,
        metadata={"help": "epochs, in a run of 120, over which the share of dropped samples grows to τ"},
    )

    def __post_init__(self) -> None:
        if self.noise_rate != "auto" and not 0 <= self.noise_rate < 1:
            raise InputError(
                f"noise_rate={self.noise_rate} is out of range: give a number from 0 to below 1 (0.4 for 40 %), or auto"
            )


class CoTeaching(Method):
    """Each network minimizes the mean cross-entropy over the samples that the other selects.

    Attributes
    ----------
    peer, peer_sgd : torch.nn.Module, SGD
        The second network g and its optimizer.
    cross_fit : CrossFit or None
        The stage of cross-fitting while it runs.
    estimates : Estimates or None
        The noise rate; None in the stage of cross-fitting.
    share : Tensor
        R, the share of a batch that is kept.
    """

    traits = MethodTraits(
        summary="two networks, each trained on the samples with the smallest losses of the other",
        reference="Han et al. 2018",
        paper_url="https://arxiv.org/abs/1804.06872",
        traceable=True,
        relative_cost=2.5,
        own_recipe={"epochs": 200, "lr_milestones": (80, 140), "batch_size": 128, "settings": {"ramp": 6.0}},
    )
    Settings: ClassVar[type] = CoTeachingSettings

    settings: CoTeachingSettings

    def __init__(self, task: Task, settings: CoTeachingSettings) -> None:
        super().__init__(task, settings)
        self.peer = task.make_net(1)
        self.peer_sgd = self.make_sgd(self.peer)
        self.average_weights("peer", self.peer)
        self.has_both_labels = (task.clean.true != UNLABELED) & (task.clean.given != UNLABELED)
        needs_estimate = settings.noise_rate == "auto" and int(self.has_both_labels.sum()) < MIN_COUNTED_SAMPLES
        self.cross_fit = CrossFit(task, self.make_sgd, first_net=2) if needs_estimate else None
        self.estimates: Estimates | None = None
        self.candidates_from = self.cross_fit.epochs if self.cross_fit else 0
        self.epochs += self.candidates_from
        self.share = torch.ones((), dtype=torch.float64, device=task.train.x.device)

    @classmethod
    def reads_clean(cls, settings: CoTeachingSettings) -> bool:
        """Return whether the noise rate is estimated with the clean set."""
        return settings.noise_rate == "auto"

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the schedule, which restarts after the stage of cross-fitting."""
        first = self.candidates_from
        return self.task.recipe.lr_at(epoch - first if epoch >= first else epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Determine τ at the end of cross-fitting, and set the share of kept samples."""
        first, recipe = self.candidates_from, self.task.recipe
        if epoch >= first and self.estimates is None:
            self._start_co_teaching(self._noise_rate())
        if self.estimates is not None:
            ramp = max(1, round(self.settings.ramp * recipe.epochs / 120))
            self.share.fill_(keep_rate(float(self.estimates.get_buffer("noise_rate")), epoch - first, ramp))
        super().begin_epoch(epoch)

    def _start_co_teaching(self, rate: float) -> None:
        """Store τ and discard the networks of cross-fitting."""
        self.cross_fit = None
        self.estimates = Estimates(noise_rate=self.share.new_tensor(rate))

    def _noise_rate(self) -> float:
        if self.settings.noise_rate != "auto":
            return self.settings.noise_rate
        if self.cross_fit is not None:
            rate = noise_rate(*self.cross_fit.estimate())
        else:
            classes, clean, given = len(self.task.train.classes), self.task.clean, self.task.train.given
            true = clean.true[self.has_both_labels]
            T = count_transitions(true, clean.given[self.has_both_labels], classes).T
            labels = torch.bincount(given[given != UNLABELED], minlength=classes).to(T)
            rate = noise_rate(T, class_prior(T, labels, torch.bincount(true, minlength=classes).to(T)))
        return min(max(rate, 0.0), 1 - 1 / len(self.task.train.classes))

    def phase(self) -> str:
        """Return "estimate" or "teach"."""
        return "estimate" if self.cross_fit is not None else "teach"

    def step(self, batch: Batch) -> Tensor:
        """Take one step of each network on the samples that the other selects."""
        if self.cross_fit is not None:
            return self.cross_fit.step(batch)
        f, g = trainable_parameters(self.net), trainable_parameters(self.peer)
        f_seed, g_seed = batch.seed, batch.seed + 1
        f_logits = forward(self.net, batch.x, f, seed=f_seed, update_statistics=True)
        g_logits = forward(self.peer, batch.x, g, seed=g_seed, update_statistics=True)
        f_weights, g_weights = (
            small_loss_weights(cross_entropy(logits.detach(), batch.given), self.share)
            for logits in (f_logits, g_logits)
        )

        def loss_of(logits: Tensor, given: Tensor, weights: Tensor) -> Tensor:
            return (weights * cross_entropy(logits, given)).sum()

        f_loss = self.recipe_loss(self.net, f, loss_of, batch.views, (batch.given, g_weights), f_seed, logits=f_logits)
        g_loss = self.recipe_loss(self.peer, g, loss_of, batch.views, (batch.given, f_weights), g_seed, logits=g_logits)
        apply_gradients(self.sgd, f.values(), gradients(f_loss, f).values())
        apply_gradients(self.peer_sgd, g.values(), gradients(g_loss, g).values())
        return (f_loss + g_loss).detach() / 2

    def end_epoch(self, epoch: int) -> None:
        """Update the estimate in the stage of cross-fitting."""
        if self.cross_fit is not None:
            self.cross_fit.end_epoch()

    def logits(self, x: Tensor) -> Tensor:
        """Return the logarithm of the mean of the two networks' probabilities."""
        return super().logits(x) if self.cross_fit is None else self.cross_fit.logits(x)

    def feature_net(self) -> nn.Module:
        """Return the first network, or one of cross-fitting while that stage runs."""
        return self.net if self.cross_fit is None else self.cross_fit.nets[0]

    def classifier(self) -> nn.Module:
        """Return the ensemble of both networks."""
        return Ensemble(self.prediction_net("net", self.net), self.prediction_net("peer", self.peer))

    def components(self) -> dict[str, Stateful]:
        """Add the second network, and τ or the networks of cross-fitting."""
        pair: dict[str, Stateful] = {"peer": self.peer, "peer_sgd": self.peer_sgd}
        estimates: dict[str, Stateful] = {} if self.estimates is None else {"estimates": self.estimates}
        return super().components() | pair | estimates | ({} if self.cross_fit is None else self.cross_fit.components())

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either stage."""
        if "estimates" in state:
            self._start_co_teaching(0.0)
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore both networks and τ."""
        if self.estimates is None:
            self._start_co_teaching(0.0)
        super().load_model_state_dict(tensors)
