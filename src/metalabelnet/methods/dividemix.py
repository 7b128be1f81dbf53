"""DivideMix (Li et al. 2020, https://arxiv.org/abs/2002.07394).

Warm-up is cross-entropy on the given labels, for two networks. Then, before each epoch, each network divides the rows:

    l_i ← cross-entropy of row i with its given label, scaled to [0, 1] over all rows
    w_i ← probability of the component with the smaller mean, in a mixture of two Gaussians fitted to all l

and each network k is trained with the division of the other, on every batch:

    row i is labeled if w_i > τ, else unlabeled
    p_i ← mean prediction of network k over the augmented copies of i; q_i ← the same of the other network
    t_i ← sharpen(w_i e(y_i) + (1 − w_i) p_i)        labeled: label refinement
    t_i ← sharpen((p_i + q_i)/2)                     unlabeled: label co-guessing
    x'_i, t'_i ← λ (x_i, t_i) + (1 − λ) (x_j, t_j)   j a random sample of the batch, λ = max(b, 1 − b), b ~ Beta(α, α)
    θ_k ← θ_k − SGD(∇ [L_X + λ_u L_U + L_reg])

    y_i, e(y)  the given label of a row; one-hot vector of a label
    τ, T       threshold of w; temperature of sharpening, p^(1/T) normalized
    L_X        mean cross-entropy of x' with t', over the labeled samples
    L_U        mean squared error between prediction and t' over samples and classes, over the unlabeled samples
    λ_u        weight of L_U, which grows linearly over the first epochs after warm-up
    L_reg      KL(uniform ‖ mean prediction of the batch)

Samples of the clean set are labeled samples with w = 1 (`clean_weight`); with `clean_weight=0` the clean set serves
only to select the epoch, as in the paper. Rows without a given label are unlabeled.

Departures from the paper, and the authors' code:

-   A batch is drawn from all rows. The paper draws as many labeled as unlabeled samples, and an epoch ends with the
    labeled ones. Both losses are means over their part of the batch, so their weights are the same.
-   The two networks take turns on each batch, not on each epoch.
-   L_U is divided by the number of classes, as in the code, to which the paper's values of λ_u belong.
-   The sample j is the one at a random distance in the shuffled batch, instead of a random permutation.
-   λ_u grows by epoch, not by step. The mixture takes ten iterations of EM from the best split in two, and has the
    code's variance floor; the code stops earlier where EM converges.
-   The code averages the losses of five epochs at 90 % noise. This is left out.
-   Predictions are the mean of both networks' probabilities; the code adds their logits.

As in the code, the network that is trained predicts in train mode (and this updates BatchNorm's running statistics),
the other one in eval mode.

There are two augmented copies of each sample; one where the run has no augmentation. With the recipe's strong
augmentation, labels are guessed from the two weakly augmented copies, and the strongly augmented one is trained on in
place of the second (as by Nishi et al. 2021, https://arxiv.org/abs/2103.02130). After warm-up this, and the mixing
above, replace the recipe's loss on strongly augmented samples, its MixUp and its label smoothing. Its EMAs predict; the
division is made by the networks themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, mixed_precision_context, predict, trainable_parameters
from metalabelnet.core.gaussian_mixture import fit_two_gaussians
from metalabelnet.core.losses import cross_entropy, entropy_loss
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.mixmatch import (
    class_balance_loss,
    draw_shares,
    labeled_loss,
    mix,
    one_hot,
    sharpen,
    unlabeled_loss,
)
from metalabelnet.core.ranks import own_span
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import gather_soft_labels
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.ensemble import Ensemble
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metalabelnet.core.optimizers import SGD
    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch, Views
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def clean_probabilities(losses: Tensor) -> Tensor:
    """Return w of every loss: the probability of the component with the smaller mean, in a mixture of two Gaussians."""
    low, high = losses.aminmax()
    scaled = ((losses - low) / (high - low).clamp_min(torch.finfo(losses.dtype).tiny)).double()
    return fit_two_gaussians(scaled).responsibilities(scaled)[:, 0].to(losses.dtype)


def refine_labels(given: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return w e(y) + (1 − w) p of every row: e(y) for w = 1, the prediction p for w = 0."""
    return w[:, None] * one_hot(given, p.shape[1], p.dtype) + (1 - w[:, None]) * p


def label_copies(views: Views) -> list[Tensor]:
    """Return the augmented copies that labels are guessed from: two, or one without an augmentation."""
    return [views.weak] if views.second is None else [views.weak, views.second]


def training_copies(views: Views) -> list[Tensor]:
    """Return the augmented copies that are trained on; with strong augmentation it replaces the second copy."""
    second = views.second if views.strong is None else views.strong
    return [views.weak] if second is None else [views.weak, second]


def partners(count: int, distance: Tensor) -> Tensor:
    """Return the position of each sample's partner: 1 to count − 1 places ahead in the batch, the same for all.

    distance  from 0 to below 1
    """
    places = 1 + (distance * (count - 1)).long()
    return (torch.arange(count, device=distance.device) + places) % count


@dataclass(frozen=True, kw_only=True)
class DivideMixSettings:
    """Settings with the paper's values for CIFAR-10."""

    threshold: float = field(
        default=0.5, metadata={"help": "τ, rows with a larger probability of a clean label are labeled"}
    )
    temperature: float = field(default=0.5, metadata={"help": "T, temperature of sharpening; 1: off"})
    alpha: float = field(default=4.0, metadata={"help": "α, parameter of the Beta distribution of the mixing share"})
    unlabeled_weight: float = field(
        default=25.0, metadata={"help": "λ_u, weight of the loss on unlabeled samples (paper: 0 to 50 on CIFAR-10)"}
    )
    ramp: float = field(default=16.0, metadata={"help": "epochs over which λ_u grows after warm-up"})
    confidence_penalty: float = field(
        default=0.0, metadata={"help": "weight of the negative entropy in warm-up (paper: 1 for class-dependent noise)"}
    )
    clean_weight: float = field(
        default=1.0, metadata={"help": "weight of a clean sample in L_X; 0: the clean set only selects the epoch"}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold={self.threshold:g} is out of range: give a number from 0 to below 1")
        for name in ("temperature", "alpha"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}={getattr(self, name):g} is out of range: give a positive number")


class DivideMix(Method):
    """Two networks that divide the rows into labeled and unlabeled ones for each other, trained by MixMatch.

    Attributes
    ----------
    peer, peer_sgd : torch.nn.Module, SGD
        The second network and its optimizer.
    division : TensorState or None
        "w", (2, N): the probability of a clean label by each network; "p", (N, C): the mean prediction of both. None in
        warm-up.
    draws : Tensor
        (2, N) random numbers of the epoch: a batch takes those of its first row, the mixing share λ and, from 0 to 1,
        the distance of the partner.
    unlabeled_weight : Tensor
        λ_u in the current epoch.
    """

    traits = MethodTraits(
        summary="two networks divide rows by a Gaussian mixture of losses, then semi-supervised MixMatch",
        reference="Li et al. 2020",
        paper_url="https://arxiv.org/abs/2002.07394",
        uses_unlabeled=True,
        has_warmup=True,
        traceable=True,
        relative_cost=3.7,
        own_recipe={
            "epochs": 300,
            "warmup": 10,
            "lr": 0.02,
            "lr_milestones": (150,),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
            "settings": {"clean_weight": 0.0},
        },
    )
    Settings: ClassVar[type] = DivideMixSettings
    second_view: ClassVar[bool] = True

    settings: DivideMixSettings

    def __init__(self, task: Task, settings: DivideMixSettings) -> None:
        super().__init__(task, settings)
        self.peer = task.make_net(1)
        self.peer_sgd = self.make_sgd(self.peer)
        self.average_weights("peer", self.peer)
        self.clean_from = task.recipe.warmup if settings.clean_weight else None
        self.division: TensorState | None = None
        rows = task.train.given
        self.draws = torch.zeros(2, len(rows), dtype=task.dtype, device=rows.device)
        self.unlabeled_weight = torch.zeros((), dtype=task.dtype, device=rows.device)

    @classmethod
    def reads_clean(cls, settings: DivideMixSettings) -> bool:
        """Return whether clean samples are trained on."""
        return settings.clean_weight > 0

    def labeled_only(self, epoch: int) -> bool:
        """Return True in warm-up; later, rows without a given label are unlabeled samples."""
        return epoch < self.task.recipe.warmup

    def begin_epoch(self, epoch: int) -> None:
        """Divide the rows at the end of warm-up; draw the random numbers of the epoch and set λ_u."""
        since, s = epoch - self.task.recipe.warmup, self.settings
        if since >= 0 and self.division is None:
            self.division = self._empty_division()
            self._divide()
        super().begin_epoch(epoch)
        if self.division is None:
            return
        rows, seed = self.draws.shape[1], self.task.seed
        self.draws[0] = draw_shares(rows, s.alpha, stream_seed(seed, "mixmatch share", epoch))
        self.draws[1] = torch.rand(rows, generator=generator(seed, "mixmatch partner", epoch))
        self.unlabeled_weight.fill_(s.unlabeled_weight * (min(1.0, since / s.ramp) if s.ramp else 1.0))

    def end_epoch(self, epoch: int) -> None:
        """Divide the rows for the next epoch."""
        if self.division is not None:
            self._divide()

    def _empty_division(self) -> TensorState:
        rows, classes = len(self.task.train), len(self.task.train.classes)
        p = ShardedTable.full(rows, classes, 0, self.draws, self.task.dtype)
        return TensorState(w=self.draws.new_zeros(2, rows), p=p)

    @torch.no_grad()
    def _divide(self) -> None:
        """Predict all rows with both networks, and fit a mixture to the losses of each."""
        assert self.division is not None
        train = self.task.train
        labeled = train.given != UNLABELED
        self.division["p"].zero_()
        for k, net in enumerate((self.net, self.peer)):
            losses, start = [], 0
            for x in chunks(train.x):
                rows = torch.arange(start, start + len(x), device=train.given.device)
                with mixed_precision_context():
                    logits = predict(net, to_input(x, self.task.dtype))
                self.division.table("p").add(rows, logits.softmax(1) / 2)
                losses.append(cross_entropy(logits, train.given[rows].clamp_min(0)))
                start += len(x)
            self.division["w"][k].zero_()
            self.division["w"][k, labeled] = clean_probabilities(torch.cat(losses)[labeled])

    def phase(self) -> str:
        """Return "warm-up" or "mix"."""
        return "warm-up" if self.division is None else "mix"

    def step(self, batch: Batch) -> Tensor:
        """Take one step of each network."""
        if self.division is None:
            return self._warmup_step(batch)
        with torch.no_grad(), mixed_precision_context():
            in_eval_mode = [
                torch.stack([predict(net, x) for x in label_copies(batch.views)]).softmax(2).mean(0)
                for net in self._nets()
            ]
        losses = []
        for k, (net, sgd) in enumerate(zip(self._nets(), self._sgds(), strict=True)):
            w = self.division["w"][1 - k, batch.index]
            losses.append(self._mixmatch_step(net, sgd, batch, w, in_eval_mode[1 - k], batch.seed + 3 * k))
        return torch.stack(losses).mean()

    def _warmup_step(self, batch: Batch) -> Tensor:
        def loss_of(logits: Tensor, given: Tensor) -> Tensor:
            penalty = -self.settings.confidence_penalty * entropy_loss(logits)
            return (cross_entropy(logits, given) + penalty).mean()

        losses = []
        for k, (net, sgd) in enumerate(zip(self._nets(), self._sgds(), strict=True)):
            theta = trainable_parameters(net)
            loss = self.recipe_loss(net, theta, loss_of, batch.views, (batch.given,), batch.seed + k)
            apply_gradients(sgd, theta.values(), gradients(loss, theta).values())
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _mixmatch_step(self, net: nn.Module, sgd: SGD, batch: Batch, w: Tensor, q: Tensor, seed: int) -> Tensor:
        """Take one step of a network, with the division w and the predictions q of the other, and return its loss."""
        s, theta = self.settings, trainable_parameters(net)
        with torch.no_grad():
            p = torch.stack(
                [forward(net, x, theta, seed=seed, update_statistics=True) for x in label_copies(batch.views)]
            )
            p = p.softmax(2).mean(0)
            is_labeled = w > s.threshold
            targets = torch.where(is_labeled[:, None], refine_labels(batch.given, w, p), (p + q) / 2)
            targets = sharpen(targets, s.temperature)
        inputs = training_copies(batch.views)
        t, weights = [targets] * len(inputs), [is_labeled.to(targets)] * len(inputs)
        unlabeled = torch.cat([1 - weights[0]] * len(inputs))
        if s.clean_weight:
            clean = training_copies(batch.clean_views)
            clean_targets = one_hot(batch.clean_y, targets.shape[1], targets.dtype)
            inputs, t = inputs + clean, t + [clean_targets] * len(clean)
            weights += [torch.full_like(clean_targets[:, 0], s.clean_weight)] * len(clean)
            unlabeled = functional.pad(unlabeled, (0, len(clean) * len(clean_targets)))
        x, targets = torch.cat(inputs), torch.cat(t)
        share, distance = self.draws[:, batch.index[:1]][:, 0]
        partner = partners(len(x), distance)
        logits = forward(net, mix(x, partner, share), theta, seed=seed + 1, update_statistics=True)
        targets = mix(targets, partner, share)
        loss = (
            labeled_loss(logits, targets, torch.cat(weights))
            + self.unlabeled_weight * unlabeled_loss(logits, targets, unlabeled)
            + class_balance_loss(logits.softmax(1))
        )
        apply_gradients(sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def _nets(self) -> tuple[nn.Module, nn.Module]:
        return self.net, self.peer

    def _sgds(self) -> tuple[SGD, SGD]:
        return self.sgd, self.peer_sgd

    def soft_labels(self) -> ClassTable | None:
        """Return the refined labels of rows that count as labeled, predictions for the others; None in warm-up."""
        if self.division is None:
            return None
        own, given = own_span(len(self.task.train)), self.task.train.given
        w, p = self.division["w"][:, own], self.division["p"]
        refined = [refine_labels(given[own], torch.where(w_k > self.settings.threshold, w_k, 0), p) for w_k in w]
        return gather_soft_labels(torch.stack(refined).mean(0), given)

    def classifier(self) -> nn.Module:
        """Return the ensemble of both networks."""
        return Ensemble(self.prediction_net("net", self.net), self.prediction_net("peer", self.peer))

    def components(self) -> dict[str, Stateful]:
        """Add the second network and, after warm-up, the division."""
        both = super().components() | {"peer": self.peer, "peer_sgd": self.peer_sgd}
        return both if self.division is None else both | {"division": self.division}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either phase."""
        if "division" in state:
            self.division = self._empty_division()
        super().load_state_dict(state)
