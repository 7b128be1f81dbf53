"""Labels by Bayes' rule from the prediction and the given label, with a label net taught by the clean set.

A successor of MetaLabelNet (Algan and Ulusoy 2021, https://arxiv.org/abs/2103.10869) by this package: a label net
generates the labels that the classifier is trained on, and learns from the clean set how to.

Phase 1, warm-up:

    θ ← θ − SGD(∇θ (Σ_i −log p_y(x_i) + Σ_m −log p_y(x_m)))      the given labels of training and clean samples

Once, at the end of warm-up:

    θ ← θ̃, with BatchNorm statistics recomputed
    r ← prediction after the classifier's last layer is refit to the clean set (`core.head_refit`)
    φ ← maximum likelihood on the clean samples, with cross-fitted r (`core.bayes_label_net`)
    φ ← noise rate fitted again, to the training samples too: by Bayes' rule each has a probability that it is wrong
    e ← noise rate of each training sample by φ, from the margins of the predictions r of all folds

Phase 2, on each batch:

    ŷ ∝ p P_φ(y | ·, x),   p ∝ q^a π / q̄,   c ← max ŷ
    u ← exp(−2 min(c − μ_c, 0)² / σ_c²)
    θ ← θ − SGD(∇θ ((1/N) Σ u^e · −Σ_k ȳ_k log p_k(x) + γ ē (1/M) Σ −log p_{y_m}(x_m))),   ȳ ∝ ŷ^(1 + (s − 1) e)

    x, y      a training batch and its given labels
    x_m, y_m  a batch of the clean set
    θ, φ      weights of the classifier and of the label net
    θ̃, q      the recipe's EMA of θ (θ itself if the recipe has none) and its prediction for x
    a         the setting `exponent`
    π, q̄      class frequencies, and mean of q over training samples, after each epoch
    P_φ       probability of a given label by class: right with probability 1 − min(e, 1 − `trust_floor`), with e from
              the sample's margin, otherwise where wrong labels go, which may follow p
    c, u      confidence of a soft label, and its weight; μ_c and σ_c² are mean and variance of c in the batch
    e, ē      the noise rate of a training sample, 1 for those without a given label, and its mean
    s, γ      the settings `sharpening` and `clean_weight`

A given label counts at least as if half of such labels were right, if wrong ones average out over the samples: a label
that only repeats the prediction teaches nothing. Whether they do is seen on clean samples with known given labels.

The weights are those of SoftMatch (Chen et al. 2023, https://arxiv.org/abs/2301.10921) with statistics of the batch:
they leave out the least certain labels, however certain the others are. Sharpening and weights are for labels that the
network generates by itself: the more likely a given label is right, the closer its soft label stays to Bayes' rule, and
its weight to 1. The more given labels are right, the less the clean set is needed beside them.

The result is selected from the last fifth of the epochs: soft labels get better to the end, and a few held-out clean
samples cannot tell the epochs before it apart.

Clean samples take part in warm-up with their given labels, each as often as a training sample, so that their margins
are like those of training samples. A clean sample without a known given label has a predicted one in place of it: the
distribution that the network predicts at the end of warm-up.

Where the given labels of the clean samples have other frequencies than those of the training samples (a χ² test), the
clean set was not drawn like them, its class frequencies say nothing about them, and π / q̄ stays 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.nn import functional

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.bayes_label_net import BayesLabelNet, margin, same_frequencies
from metalabelnet.core.forward_pass import predict, recompute_running_statistics, trainable_parameters
from metalabelnet.core.head_refit import Head, refit_head, refit_head_by_fold
from metalabelnet.core.losses import cross_entropy, soft_cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.core.top_classes import collect, top_probabilities
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunk_size, chunks
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.head import FeatureExtractor, find_head
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.data.rows import Rows
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


MAX_FIT_SAMPLES = 4096  # for recomputing BatchNorm statistics, for the head refit and for the mean prediction
MAX_STATISTICS_CHUNKS = 32  # forward passes to recompute BatchNorm statistics
MIN_VARIANCE = 1e-6  # of the confidence in a batch
MAX_HEAD_NORM_RATIO = 4.0  # of a refit layer and the present one; at 17, without BatchNorm before it, training diverges


@dataclass(frozen=True, kw_only=True)
class MetaLabelNetPlusSettings:
    """Settings, with one set of defaults for all data sets and noise types."""

    exponent: float = field(
        default=0.7,
        metadata={"help": "a, exponent of the prediction in a soft label; the lower, the more given labels count"},
    )
    sharpening: float = field(
        default=2.0,
        metadata={"help": "s, exponent of the soft label at noise rate 1 (1 at rate 0); 1: no sharpening"},
    )
    weighted: bool = field(
        default=True,
        metadata={"help": "whether doubtful labels of low confidence have a lower weight; otherwise all have 1"},
    )
    clean_weight: float = field(
        default=1.0, metadata={"help": "γ, weight of the clean loss, times the mean noise rate; 0: off"}
    )
    warmup_share: float = field(
        default=0.2, metadata={"help": "part of the recipe's warm-up that this method takes, greater than 0"}
    )
    learn: bool = field(
        default=True, metadata={"help": "whether the label net learns; otherwise it keeps its initial weights"}
    )
    trust_floor: float = field(
        default=0.5,
        metadata={"help": "given labels count at least as if this part were right, if wrong ones average out; 0: off"},
    )
    by_margin: bool = field(
        default=True, metadata={"help": "whether the noise rate depends on the sample's margin; otherwise one number"}
    )
    by_prediction: bool = field(
        default=True, metadata={"help": "whether wrong labels may follow the prediction; otherwise only the class"}
    )
    rate_from_training: bool = field(
        default=True,
        metadata={"help": "whether training samples take part in the noise rate; otherwise clean samples alone"},
    )
    align: bool = field(
        default=True,
        metadata={"help": "whether the mean prediction is aligned with the class frequencies of the clean set"},
    )

    def __post_init__(self) -> None:
        for name, value in (("exponent", self.exponent), ("sharpening", self.sharpening)):
            if not value > 0:
                raise InputError(f"{name}={value} is out of range: give a number above 0")
        if not 0 <= self.trust_floor <= 1:
            raise InputError(f"trust_floor={self.trust_floor} is out of range: give a number from 0 to 1")
        if not 0 < self.warmup_share <= 1:
            raise InputError(f"warmup_share={self.warmup_share} is out of range: give a number above 0, at most 1")


class MetaLabelNetPlus(Method):
    """Phase 1 is cross-entropy on the given labels; phase 2 trains on generated labels and the clean set.

    Attributes
    ----------
    warmup : int
        Number of epochs of phase 1.
    label_net : BayesLabelNet or None
        Turns predictions and given labels into soft labels; None in warm-up.
    rates : TensorState or None
        The noise rate e of each training row, and ē; None in warm-up, and in a model that is loaded for prediction.
    """

    traits = MethodTraits(
        summary="labels by Bayes' rule from prediction and given label; the clean set teaches how far to trust each",
        reference="this package, after Algan and Ulusoy 2021",
        paper_url="https://arxiv.org/abs/2103.10869",
        uses_unlabeled=True,
        needs_clean=True,
        has_warmup=True,
        traceable=True,
        select_from=0.8,
        relative_cost=2.1,
    )
    Settings: ClassVar[type] = MetaLabelNetPlusSettings

    settings: MetaLabelNetPlusSettings

    def __init__(self, task: Task, settings: MetaLabelNetPlusSettings) -> None:
        super().__init__(task, settings)
        warmup = task.recipe.warmup
        self.warmup = max(min(1, warmup), round(settings.warmup_share * warmup))
        self.candidates_from = self.clean_from = self.warmup
        examples = to_input(task.train.x[:2], task.dtype)
        self.head = find_head(self.net, examples, len(task.train.classes), task.head)
        self.label_net: BayesLabelNet | None = None
        self.rates: TensorState | None = None

    def labeled_only(self, epoch: int) -> bool:
        """Return True in warm-up; phase 2 also uses unlabeled rows."""
        return epoch < self.warmup

    def phase(self) -> str:
        """Return "warm-up" or "phase 2"."""
        return "warm-up" if self.label_net is None else "phase 2"

    def begin_epoch(self, epoch: int) -> None:
        """At the end of warm-up, start phase 2 from θ̃ and teach the label net."""
        if epoch >= self.warmup and self.label_net is None:
            self.net.load_state_dict(self.classifier().state_dict())
            recompute_running_statistics(
                self.net, self._statistics_samples(), seed=stream_seed(self.task.seed, "statistics")
            )
            self.classifier().load_state_dict(self.net.state_dict())
            self._build_label_net()
            self._teach_label_net()
            self._align()
        super().begin_epoch(epoch)

    def end_epoch(self, epoch: int) -> None:
        """Update the class balance of the soft labels for the next epoch."""
        super().end_epoch(epoch)
        if self.label_net is not None:
            self._align()

    @torch.no_grad()
    def _align(self) -> None:
        train, clean = self.task.train, self.task.clean
        if (
            self.settings.learn
            and self.settings.align
            and same_frequencies(train.given, clean.given, len(train.classes))
        ):
            assert self.label_net is not None
            rows = _evenly_spaced(train, MAX_FIT_SAMPLES)
            log_q = [predict(self.classifier(), to_input(x, self.task.dtype)).log_softmax(1) for x in chunks(rows.x)]
            self.label_net.align(torch.cat(log_q), clean.true)

    def _build_label_net(self) -> None:
        train = self.task.train
        label_net = BayesLabelNet(len(train.classes), self.settings.exponent)
        self.label_net = label_net.to(train.given.device, self.task.dtype)
        self.rates = TensorState(rate=self.sgd.lr.new_zeros(len(train)), mean=self.sgd.lr.new_zeros(()))

    def _statistics_samples(self) -> Iterator[Tensor]:
        """Return chunks of evenly spaced training samples, without augmentation, for BatchNorm statistics."""
        train = self.task.train
        limit = min(MAX_FIT_SAMPLES, MAX_STATISTICS_CHUNKS * chunk_size(tuple(train.x.shape[1:])))
        return (to_input(x, self.task.dtype) for x in chunks(_evenly_spaced(train, limit).x))

    @torch.no_grad()
    def _teach_label_net(self) -> None:
        """Refit the last layer, fit φ, and compute the noise rate of each training row."""
        assert self.label_net is not None
        assert self.rates is not None
        clean = _evenly_spaced(self.task.clean, MAX_FIT_SAMPLES)
        v = torch.cat(list(self._features_of(clean)))
        head = cast("nn.Linear", self.net.get_submodule(self.head))
        old = head.weight.clone()
        old_bias = old.new_zeros(len(old)) if head.bias is None else head.bias.clone()
        refit = refit_head(v, clean.true, old, old_bias, generator(self.task.seed, "folds"))
        none = torch.zeros_like(self.rates["rate"])[:, None]  # a label net that does not learn reads no margins
        margins = self._fit_label_net(clean, v, old, old_bias) if self.settings.learn else none
        self._copy_head(*refit)
        rate, labeled = self.label_net.noise_rate(margins).mean(1), self.task.train.given >= 0
        self.rates["rate"].copy_(rate.masked_fill(~labeled, 1.0))
        self.rates["mean"].copy_(self.rates["rate"].mean())

    def _fit_label_net(self, clean: Rows, v: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Fit φ to clean rows with features v, and its noise rate to the training rows too.

        `weight` and `bias` are the last layer at the end of warm-up; it predicts given labels that are unknown.
        Returns the margins of the training rows, a column for the last layer of each fold.
        """
        assert self.label_net is not None
        s, known = self.settings, clean.given >= 0
        heads, log_r = refit_head_by_fold(v, clean.true, weight, bias, self.task.seed)
        predicted = functional.linear(v, weight, bias).softmax(1)
        one_hot = functional.one_hot(clean.given.clamp_min(0), len(weight)).to(predicted)
        given = torch.where(known[:, None], one_hot, predicted)
        self.label_net.fit(log_r, given, clean.true, by_margin=s.by_margin, by_prediction=s.by_prediction)
        margins, wrong = self._predict_train(heads)
        labeled = self.task.train.given >= 0
        if known.all() and labeled.any():  # what wrong labels are like is seen, not predicted
            if s.rate_from_training:
                train = {"train_margins": margins[labeled].flatten(), "train_wrong": wrong[labeled].flatten()}
                self.label_net.refit_noise_rate(log_r, clean.given, clean.true, **train, by_margin=s.by_margin)
            self.label_net.limit_rate(float(self.label_net.noise_rate(margins[labeled]).mean()), s.trust_floor)
        return margins

    def _predict_train(self, heads: list[Head]) -> tuple[Tensor, Tensor]:
        """Return margins of the training rows, and probabilities that their given labels are wrong, (N, heads)."""
        assert self.label_net is not None
        margins, wrong, given = [], [], self.task.train.given.clamp_min(0).repeat_interleave(len(heads))
        for v in self._features_of(self.task.train):
            log_r = torch.stack([functional.linear(v, *head).log_softmax(1) for head in heads], 1).flatten(0, 1)
            margins.append(margin(log_r).view(-1, len(heads)))
            wrong.append(self.label_net.wrong_probability(log_r, given[: len(log_r)]).view(-1, len(heads)))
            given = given[len(log_r) :]
        return torch.cat(margins), torch.cat(wrong)

    def _copy_head(self, weight: Tensor, bias: Tensor) -> None:
        """Copy a refit last layer into the classifier and θ̃, unless the last layer has no bias.

        A layer with a much larger norm than the present one, as small features give it, is scaled down: its predicted
        classes stay, and training can continue with the same learning rate.
        """
        heads = [cast("nn.Linear", net.get_submodule(self.head)) for net in (self.net, self.classifier())]
        norm = weight.norm().clamp_min(torch.finfo(weight.dtype).tiny)  # 0 if all features are constant
        scale = (MAX_HEAD_NORM_RATIO * heads[0].weight.norm() / norm).clamp_max(1.0)
        for head in heads:
            if head.bias is not None:
                head.weight.copy_(scale * weight)
                head.bias.copy_(scale * bias)

    def _features_of(self, rows: Rows) -> Iterator[Tensor]:
        g = FeatureExtractor(self.net, self.head)
        return (g(to_input(x, self.task.dtype)) for x in chunks(rows.x))

    def step(self, batch: Batch) -> Tensor:
        """Take one step of warm-up or phase 2."""
        theta, s = trainable_parameters(self.net), self.settings

        def loss_on(views: Any, targets: tuple[Tensor, ...], seed: int, loss_of: Any) -> Tensor:
            return self.recipe_loss(self.net, theta, loss_of, views, targets, seed)

        if self.label_net is None:
            share = len(self.task.clean) / len(self.task.train)
            loss = loss_on(batch.views, (batch.given,), batch.seed, _given_loss)
            loss = loss + share * loss_on(batch.clean_views, (batch.clean_given,), batch.seed + 7, _given_loss)
        else:
            log_y_hat = self._log_soft_labels(batch.x, batch.given, batch.index)
            assert self.rates is not None
            rate = self.rates["rate"][batch.index]
            weight = confidence_weight(log_y_hat) ** rate if s.weighted else torch.ones_like(rate)
            log_targets = ((1 + (s.sharpening - 1) * rate)[:, None] * log_y_hat).log_softmax(1)
            loss = loss_on(batch.views, (log_targets, weight), batch.seed, _soft_label_loss)
            if s.clean_weight:
                gamma = s.clean_weight * self.rates["mean"]
                loss = loss + gamma * loss_on(batch.clean_views, (batch.clean_y,), batch.seed + 7, _given_loss)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    @torch.no_grad()
    def _log_soft_labels(self, x: Tensor, given: Tensor, index: Tensor) -> Tensor:
        """Return log ŷ of network inputs."""
        assert self.label_net is not None
        log_q = predict(self.classifier(), x).log_softmax(1)
        rate = self.label_net.noise_rate(margin(log_q)) if self.rates is None else self.rates["rate"][index]
        return cast("Tensor", self.label_net(log_q, rate, given))

    @torch.no_grad()
    def soft_labels(self) -> ClassTable | None:
        """Return ŷ of all training rows, computed in eval mode without augmentation; None in warm-up."""
        if self.label_net is None:
            return None
        return collect(self._soft_label_chunks(), len(self.task.train))

    def _soft_label_chunks(self) -> Iterator[ClassTable]:
        rows = torch.arange(len(self.task.train), device=self.task.train.given.device)
        for x in chunks(self.task.train.x):
            index, rows = rows[: len(x)], rows[len(x) :]
            given = self.task.train.given[index]
            yield top_probabilities(self._log_soft_labels(to_input(x, self.task.dtype), given, index).exp(), given)

    def components(self) -> dict[str, Stateful]:
        """Add the label net and the noise rates in phase 2."""
        components = super().components()
        if self.label_net is not None:
            components["label_net"] = self.label_net
        if self.rates is not None:
            components["rates"] = self.rates
        return components

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either phase."""
        if "label_net" in state:
            self._build_label_net()
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the model. Noise rates belong to the rows of the training run and are not part of it."""
        if any(name.startswith("label_net.") for name in tensors):
            self._build_label_net()
        super().load_model_state_dict(tensors)
        self.rates = None


def _given_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy over all samples, counting 0 for those without a label."""
    return (cross_entropy(logits, y.clamp_min(0)) * (y >= 0)).mean()


def _soft_label_loss(logits: Tensor, log_targets: Tensor, weight: Tensor) -> Tensor:
    return (weight * soft_cross_entropy(logits, log_targets)).mean()


def confidence_weight(log_y_hat: Tensor) -> Tensor:
    """Return the weight u of each soft label of a batch: 1 above the mean confidence, falling below it."""
    confidence = log_y_hat.max(1).values.exp()
    below = (confidence - confidence.mean()).clamp_max(0.0)
    variance = confidence.var(correction=0).clamp_min(MIN_VARIANCE)
    return torch.exp(-2 * below**2 / variance)


def _evenly_spaced(rows: Rows, limit: int) -> Rows:
    """Return at most `limit` rows, evenly spaced."""
    count = min(len(rows), limit)
    return rows.take(torch.arange(count) * len(rows) // max(count, 1))
