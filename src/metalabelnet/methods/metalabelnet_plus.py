"""MetaLabelNet whose classifier follows the clean set, its own average and a strong view too. All off: MetaLabelNet.

    θ, φ      the weights of the classifier and of the label net
    θ̃         the average of θ over the steps: it predicts, gives the label net its features v, and q = f_θ̃(x)
    ŷ         the soft labels of a training batch: log ŷ = m_φ(v) + ρ log r + (1 − ρ)(π log q + κ log T_·y), normalised
    r         what the clean samples have made of warm-up (core/near.py), found once for every row; ρ falls from 1 to 0
    T         the noise matrix: T_cy is the mean over the clean samples of class c of what warm-up has learned to expect
              as their given label (Hendrycks et al. 2018), without the network's own doubt where noise looks random
              (core/transition.py); a sample without a given label y has none of this
    L_y       cross-entropy from ŷ to the prediction, in place of Algorithm 1's L_c + L_e in step 3
    L_u       cross-entropy from ŷ to the prediction on the strong view
    g         the gradient of the clean loss after the look-ahead, ∇θ̂ L_meta(θ̂), which the meta-gradient needs anyway

    φ ← φ − Adam(∂L_meta/∂φ)                    as in Algorithm 1
    θ ← θ − SGD(∇θ (L_y + w L_u) + γ g)         w is `consistency`, γ `clean_weight`

after a share of the schedule's warm-up, from θ̃ as it is then, at a rate that falls along half a cosine. The pass that
gives g is in the iteration already, and the pass through θ̃ takes the place of that through the extractor; the strong
view costs one pass more, forward and backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch.nn import functional

from metalabelnet.core.forward_pass import Theta, forward, measure_statistics, predict
from metalabelnet.core.head_refit import fit_near
from metalabelnet.core.losses import soft_cross_entropy
from metalabelnet.core.tensor_state import Estimates, TensorState
from metalabelnet.core.transition_matrix import deconfounded
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunk_size, chunks
from metalabelnet.data.strong_augment import has_strong_view
from metalabelnet.errors import InputError
from metalabelnet.methods.label_net_method import Generated, LabelNetSettings
from metalabelnet.nets.ema import EMA
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from metalabelnet.core.algorithm import Phase2, SoftLoss
    from metalabelnet.data.batches import Batch
    from metalabelnet.data.rows import Rows
    from metalabelnet.methods.method import Part, Task

Features = Literal["warm-up", "ema"]
Step3 = Literal["paper", "cross-entropy"]
LRSchedule = Literal["milestones", "cosine"]
Matrix = Literal["expected", "deconfounded"]
MEASURED, PASSES = 4096, 32  # samples, and chunks of them, that BatchNorm's statistics or a last layer are known by
LEAST = 1e-6  # no given label is impossible: one of them would end the matter
STEEP = 30.0  # times as large, a fitted layer is none to learn on from


@dataclass(frozen=True, kw_only=True)
class MetaLabelNetPlusSettings(LabelNetSettings):
    """The ingredients, one set for all data and noises, and the rest of MetaLabelNet."""

    clean_weight: float = field(default=1.0, metadata={"help": "γ, how much θ follows the clean batch; 0: off"})
    warmup_share: float = field(default=0.35, metadata={"help": "how much of the schedule's warm-up is taken; 1: off"})
    ema: float = field(default=0.999, metadata={"help": "how much the averaged network keeps at most; 0: off"})
    features: Features = field(
        default="ema", metadata={"help": "whose features the label net reads; warm-up: off, fixed from its end on"}
    )
    prior: float = field(default=3.0, metadata={"help": "π, weight of the averaged prediction in ŷ; 0: off"})
    given: float = field(
        default=2.0, metadata={"help": "κ, weight of the given label in ŷ, by an estimate of its noise; 0: off"}
    )
    matrix: Matrix = field(
        default="deconfounded",
        metadata={"help": "T: what warm-up expects (off), or where noise looks random without the network's own doubt"},
    )
    handover: float = field(
        default=0.25,
        metadata={"help": "share of phase 2 over which ŷ comes from what the clean samples made of warm-up; 0: off"},
    )
    consistency: float = field(default=1.0, metadata={"help": "w, weight of the loss on the strong view; 0: off"})
    step3: Step3 = field(
        default="cross-entropy", metadata={"help": "how θ follows ŷ: cross-entropy to it, or L_c + L_e (paper: off)"}
    )
    lr_schedule: LRSchedule = field(
        default="cosine", metadata={"help": "the rate after warm-up: half a cosine, or the schedule's drops (off)"}
    )
    lr_scale: float = field(default=4.0, metadata={"help": "how much higher the cosine is than the schedule's rate"})

    def __post_init__(self) -> None:
        for name, means in (
            ("warmup_share", "1 takes all of the warm-up"),
            ("ema", "0 takes the classifier as it is"),
            ("handover", "0 begins with the averaged prediction itself"),
        ):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name}={value} is not a share in [0, 1]: {means}")
        if self.lr_scale == 0:
            raise InputError("lr_scale=0 leaves nothing to learn with: 1 begins at the schedule's rate")


class MetaLabelNetPlus(Generated):
    """Phase 1 is cross-entropy on the labeled rows, and short; phase 2 goes over all rows.

    Algorithm 1 lets the clean set teach the label net alone; what it says about the classifier itself is computed on
    the way, as g, and thrown away. Here the classifier takes it: it learns from the clean samples as one would without
    any of this, and from the soft labels beside them. Warm-up ends early, before wrong labels are learned by heart; it
    is rounded up, because the label net has nothing to read in a network that has learned nothing.

    While labels are noisy a step is noisy too: the average over the steps of warm-up knows far more than the last of
    them. So it is taken from the first step on, and phase 2 begins from it. BatchNorm's statistics of the average are
    then measured: averaged along with the weights they lag behind, and after a few steps they are those of no network.

    T is found once, at the end of warm-up, and stays: counted again and again on samples that are learned with their
    given labels it would come to trust them more and more. q is vague at first, because it still expects noise: a
    weight π above 1 makes it as sure as it may be. So is T: two classes that look alike seem to be given each other's
    labels, and a given label says least where it is needed most. Where noise looks random that doubt is taken out of T;
    elsewhere a weight κ above 1 makes up for some of it. Below π a given label decides where the averaged network is in
    doubt, and hardly elsewhere.

    The clean samples, which warm-up has not seen, fit the classifier's last layer anew at its end, near the one that is
    there; what the network then says of each row is r. While phase 2 is young the soft labels are made of r, which does
    not move, so that what warm-up knew is not lost while the classifier learns to do without given labels.

    The result is an epoch of the last third: before that the rate is high, and a few clean samples held out may find
    an early epoch good by chance.
    """

    summary = "MetaLabelNet whose classifier follows the clean samples and a strong view too, after a short warm-up"
    reference = "this package, after Algan and Ulusoy 2021"
    Settings: ClassVar[type] = MetaLabelNetPlusSettings

    settings: MetaLabelNetPlusSettings

    def __init__(self, task: Task, settings: MetaLabelNetPlusSettings) -> None:
        super().__init__(task, settings)
        s = settings
        self.clean_weight = s.clean_weight
        self.warmup = self.candidates_from = math.ceil(s.warmup_share * task.schedule.warmup)
        if s.lr_schedule == "cosine":
            self.candidates_from = max(self.warmup, 2 * self.epochs // 3)
        if s.clean_weight > 0:
            self.clean_from = self.warmup
        if s.consistency and has_strong_view(task.train.x):
            self.strong_from = self.warmup
        self.ema: EMA | None = None
        if s.ema or s.prior or s.features == "ema":
            self.ema = EMA(self.net, self.head, s.ema)
        self.noise: Estimates | None = None
        self.first: TensorState | None = None

    def lr_at(self, epoch: int) -> float:
        """The schedule's in warm-up; then half a cosine over all epochs, from a higher rate down to nothing."""
        if epoch < self.warmup or self.settings.lr_schedule == "milestones":
            return super().lr_at(epoch)
        return self.settings.lr_scale * self.task.schedule.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2

    def begin_epoch(self, epoch: int) -> None:
        """At the end of warm-up, phase 2 begins from the average, with statistics of its own."""
        begins = epoch >= self.warmup and self.phase2 is None
        if begins and self.ema is not None:
            self.net.load_state_dict(self.ema.net.state_dict())
            measure_statistics(self.net, self._some(), seed=stream_seed(self.task.seed, "statistics"))
            self.ema.net.load_state_dict(self.net.state_dict())
        super().begin_epoch(epoch)
        if begins:
            self._ask_clean()
        if self.first is not None:
            past = (epoch - self.warmup) / (self.settings.handover * (self.epochs - self.warmup))
            self.first["weight"].fill_(max(0.0, 1 - past))

    def _some(self) -> Iterator[Tensor]:
        """Training samples from end to end, as they are: enough to know BatchNorm's statistics by."""
        train = self.task.train
        some = _spread(train, min(MEASURED, PASSES * chunk_size(tuple(train.x.shape[1:]))))
        return (to_input(x, self.task.dtype) for x in chunks(some.x))

    def _build_phase2(self) -> None:
        """Make room for T and r too: what is in it is found when phase 2 begins, or loaded."""
        super()._build_phase2()
        zeros = self.sgd.lr.new_zeros
        classes = len(self.task.train.classes)
        if self.settings.given:
            self.noise = Estimates(T=zeros(classes, classes))
        if self.settings.handover:
            self.first = TensorState(log_r=zeros(len(self.task.train), classes), weight=zeros(()))

    @torch.no_grad()
    def _ask_clean(self) -> None:
        """Find T and r, from the network that has just learned given labels and the clean samples it has not seen."""
        if self.noise is not None:
            self.noise.get_buffer("T").copy_(self._noise_matrix())
        if self.first is not None:
            weight, bias = self._fit_to_clean()
            log_r = [functional.linear(v, weight, bias).log_softmax(1) for v in self._features_of(self.task.train)]
            self.first["log_r"].copy_(torch.cat(log_r))

    def _fit_to_clean(self) -> tuple[Tensor, Tensor]:
        """A last layer fitted to the clean samples, near what warm-up has made of it; the classifiers take it over.

        Unless they have no room for it, because theirs has no bias, or could not learn on from it: features that
        nothing normalises can be so small that a layer that reads them is too steep.
        """
        clean = _spread(self.task.clean, MEASURED)
        v = torch.cat(list(self._features_of(clean)))
        nets = [self.net] if self.ema is None else [self.net, self.ema.net]
        heads = [cast("nn.Linear", net.get_submodule(self.head)) for net in nets]
        old = heads[0].weight
        bias = old.new_zeros(len(old)) if heads[0].bias is None else heads[0].bias
        fitted = fit_near(v, clean.true, old, bias, generator(self.task.seed, "folds"))
        if heads[0].bias is not None and fitted[0].norm() <= STEEP * old.norm():
            for head in heads:
                head.weight.copy_(fitted[0])
                head.bias.copy_(fitted[1])
        return fitted

    def _features_of(self, rows: Rows) -> Iterator[Tensor]:
        assert self.phase2 is not None
        return (self.phase2.g(to_input(x, self.task.dtype)) for x in chunks(rows.x))

    @torch.no_grad()
    def _noise_matrix(self) -> Tensor:
        """T, from the network that has just learned given labels: what it expects of each class of clean samples."""
        clean, dtype = self.task.clean, self.task.dtype
        expected = torch.cat([predict(self.net, to_input(x, dtype)).softmax(1) for x in chunks(clean.x)])
        of_class = functional.one_hot(clean.true, expected.shape[1]).to(expected)
        seen = of_class.sum(0)[:, None]
        uniform = torch.full_like(expected[:1], 1 / expected.shape[1])
        T = torch.where(seen > 0, of_class.T @ expected / seen.clamp_min(1), uniform)
        return T if self.settings.matrix == "expected" else deconfounded(T, expected, clean.true)

    def step(self, batch: Batch) -> Tensor:
        """Warm-up on the given labels, or one iteration with all that is switched on."""
        loss = super().step(batch) if self.phase2 is None else self._iteration(self.phase2, batch)
        if self.ema is not None:
            self.ema.follow(self.net)
        return loss

    def _iteration(self, phase2: Phase2, batch: Batch) -> Tensor:
        """One iteration with all that is switched on."""
        v, evidence = self._known(batch.x, batch.given, batch.index)
        return phase2.step(
            batch.x,
            batch.clean_x,
            batch.clean_y,
            seed=batch.seed,
            v=v,
            evidence=evidence,
            soft_loss=self._soft_loss(phase2, batch.strong_x, batch.seed + 3),
        )

    def _soft_loss(self, phase2: Phase2, strong_x: Tensor | None, seed: int) -> SoftLoss:
        """The loss of step 3: L_y, or L_c + L_e, and w L_u where there is a strong view."""
        s = self.settings

        def loss(theta: Theta, f_x: Tensor, log_y_hat: Tensor) -> Tensor:
            paper = s.step3 == "paper"
            l_y = phase2.l_c_and_l_e(f_x, log_y_hat) if paper else soft_cross_entropy(f_x, log_y_hat).mean()
            if strong_x is None:
                return l_y
            logits = forward(self.net, strong_x, theta, seed=seed, update_statistics=False)
            return l_y + s.consistency * soft_cross_entropy(logits, log_y_hat).mean()

        return loss

    def _known(self, x: Tensor, given: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """What makes the soft labels of x: the features, and ρ log r + (1 − ρ)(π log q + κ log T_·y)."""
        assert self.phase2 is not None
        s, evidence = self.settings, []
        v = logits = None
        if self.ema is not None and (s.prior or s.features == "ema"):
            v, logits = self.ema.ask(x)
        if logits is not None and s.prior:
            evidence.append(s.prior * logits.log_softmax(1))
        if self.noise is not None:
            labeled = (given >= 0).to(x)[:, None]
            expected: Tensor = self.noise.get_buffer("T")
            evidence.append(s.given * labeled * expected.clamp_min(LEAST).log().T[given.clamp_min(0)])
        if v is None or s.features != "ema":
            v = self.phase2.g(x)
        if self.first is not None:
            weight = self.first["weight"]
            evidence = [(1 - weight) * known for known in evidence]
            evidence.append(weight * self.first["log_r"][index])
        return v, torch.stack(evidence).sum(0) if evidence else None

    @torch.no_grad()
    def soft_labels(self) -> Tensor | None:
        """ŷ for every training row, from the samples as they are, without augmentation, dropout or batch statistics."""
        if self.phase2 is None or (self.ema is None and self.noise is None and self.first is None):
            return super().soft_labels()
        labels, rows = [], torch.arange(len(self.task.train), device=self.task.train.given.device)
        for x in chunks(self.task.train.x):
            index, rows = rows[: len(x)], rows[len(x) :]
            v, evidence = self._known(to_input(x, self.task.dtype), self.task.train.given[index], index)
            generated = predict(self.phase2.m, v)
            labels.append((generated if evidence is None else generated + evidence).softmax(1))
        return torch.cat(labels)

    def classifier(self) -> nn.Module:
        """The averaged network, where there is one."""
        return self.net if self.ema is None else self.ema.net

    def parts(self) -> dict[str, Part]:
        """The averaged network too, which takes the place of the extractor where the label net reads its features."""
        parts = super().parts()
        if self.ema is not None:
            parts |= {"ema": self.ema.net, "ema_state": self.ema.memory}
            if self.settings.features == "ema":
                parts.pop("extractor", None)
        if self.noise is not None:
            parts["noise"] = self.noise
        if self.first is not None:
            parts["first"] = self.first
        return parts

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """A model that is kept was made by then: nothing is handed over any more."""
        super().load_model(tensors)
        self.first = None


def _spread(rows: Rows, most: int) -> Rows:
    """So many of the rows at most, from end to end."""
    count = min(len(rows), most)
    return rows.take(torch.arange(count) * len(rows) // max(count, 1))
