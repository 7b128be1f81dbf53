"""MetaLabelNet with a loss on the clean set and soft labels that use the given label and the classifier's prediction.

An extension of MetaLabelNet (Algan and Ulusoy 2021, https://arxiv.org/abs/2103.10869) by this package.

Phase 1, warm-up:

    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y(x_i))

Once, at the end of warm-up:

    θ ← θ̃, with BatchNorm statistics recomputed
    T, r from the clean set                    see the legend

Phase 2, on each batch:

    log ŷ = m_φ(v) + ρ log r + (1 − ρ)(π log q + κ log T_·y), normalized
    φ ← φ − Adam(∂L_meta/∂φ)                   as in Algorithm 1
    θ ← θ − SGD(∇θ L_y + γ g)

    x, y      a training batch and its given labels
    θ, φ      weights of the classifier f and of the label net m
    θ̃         the recipe's EMA of θ; θ itself if the recipe has none
    v, q      features and prediction of f_θ̃ for x
    ŷ         soft labels of the batch
    r         prediction for each training row at the end of warm-up, after the classifier's last layer is refit to the
              clean set (`core.head_refit`); computed once
    ρ         falls linearly from 1 to 0 over the first part of phase 2 (`handover`)
    T         transition matrix: T_cy is the mean predicted probability of given label y over the clean samples of class
              c at the end of warm-up (Hendrycks et al. 2018, https://arxiv.org/abs/1802.05300); if the noise looks
              random, corrected for the classifier's own confusion (`core.transition_matrix`). The term is 0 for a
              sample without a given label
    L_y       cross-entropy of the prediction with ŷ; replaces L_c + L_e in step 3 of Algorithm 1
    g         ∇θ̂ L_meta(θ̂), the gradient of the clean loss at the look-ahead, which the meta-gradient computes anyway
    π, κ, γ   the settings `prior`, `given`, `clean_weight`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch.nn import functional

from metalabelnet.core.forward_pass import mixed_precision_context, predict, recompute_running_statistics
from metalabelnet.core.head_refit import refit_head
from metalabelnet.core.losses import soft_cross_entropy
from metalabelnet.core.tensor_state import Estimates, TensorState
from metalabelnet.core.transition_matrix import deconfounded
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunk_size, chunks
from metalabelnet.errors import InputError
from metalabelnet.methods.label_net_method import LabelNetMethod, LabelNetSettings
from metalabelnet.methods.method import MethodTraits
from metalabelnet.nets.head import features_and_logits
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.data.rows import Rows
    from metalabelnet.methods.method import Stateful, Task

Matrix = Literal["expected", "deconfounded"]
MAX_FIT_SAMPLES = 4096  # for recomputing BatchNorm statistics and for the head refit
MAX_STATISTICS_CHUNKS = 32  # forward passes to recompute BatchNorm statistics
MIN_TRANSITION_PROBABILITY = 1e-6  # bounds log T: at T_cy = 0 a given label would rule out class c
MAX_HEAD_NORM_RATIO = 30.0  # a refit layer with a larger norm, relative to the old one, makes training diverge


@dataclass(frozen=True, kw_only=True)
class MetaLabelNetPlusSettings(LabelNetSettings):
    """Settings of the extensions, with defaults for all data sets and noise types, and the settings of MetaLabelNet."""

    clean_weight: float = field(
        default=1.0, metadata={"help": "γ, weight of the clean loss's gradient in the classifier's step; 0: off"}
    )
    prior: float = field(
        default=3.0, metadata={"help": "π, weight of the EMA classifier's log-probabilities in the soft labels; 0: off"}
    )
    given: float = field(
        default=2.0,
        metadata={"help": "κ, weight of the given label's log-likelihood under T in the soft labels; 0: off"},
    )
    matrix: Matrix = field(
        default="deconfounded",
        metadata={
            "help": "transition matrix T: mean predictions on the clean set (expected: off), or, if the noise looks "
            "random, these corrected for the classifier's own confusion (deconfounded)"
        },
    )
    handover: float = field(
        default=0.25,
        metadata={
            "help": "fraction of phase 2 over which the soft labels move from the predictions at the end of warm-up "
            "(last layer refit to the clean set) to the current ones; 0: off"
        },
    )

    def __post_init__(self) -> None:
        if self.handover > 1:
            raise InputError(f"handover={self.handover} is out of range: give a number from 0 to 1 (0 turns it off)")


class MetaLabelNetPlus(LabelNetMethod):
    """Phase 1 is cross-entropy on the labeled rows; phase 2 uses all rows.

    Reasons for the extensions:

    clean_weight   In Algorithm 1 the clean set trains only the label net, although the gradient g for the classifier is
                   computed on the way. Here the classifier uses it.
    given, matrix  T is estimated once: re-estimated on samples that are trained on with their given labels, it would
                   trust these more and more. T mixes label noise with the classifier's own confusion of similar
                   classes, which makes given labels least informative where they are needed most. If the noise looks
                   random, T is corrected for it; otherwise κ > 1 compensates for part of it.
    prior          q is underconfident at first, because it models the noise as well; π > 1 sharpens it. With κ < π a
                   given label matters only where the classifier is uncertain.
    handover       The clean samples were not trained on in warm-up, so the last layer can be refit to them. The
                   predictions r of this classifier are fixed, and keep what warm-up has learned while the classifier
                   adapts to training without given labels.
    """

    traits = MethodTraits(
        summary="MetaLabelNet plus a loss on the clean set; labels from predictions, given label and a noise estimate",
        reference="this package, after Algan and Ulusoy 2021",
        paper_url="https://arxiv.org/abs/2103.10869",
        uses_unlabeled=True,
        needs_clean=True,
        has_warmup=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=4.0,
    )
    Settings: ClassVar[type] = MetaLabelNetPlusSettings

    settings: MetaLabelNetPlusSettings

    def __init__(self, task: Task, settings: MetaLabelNetPlusSettings) -> None:
        super().__init__(task, settings)
        self.clean_weight = settings.clean_weight
        if settings.clean_weight > 0:
            self.clean_from = self.warmup
        self.transition: Estimates | None = None
        self.refit_predictions: TensorState | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Start phase 2 from θ̃ at the end of warm-up, and set ρ."""
        starts_phase2 = epoch >= self.warmup and self.phase2 is None
        if starts_phase2:
            self.net.load_state_dict(self.classifier().state_dict())
            recompute_running_statistics(
                self.net, self._statistics_samples(), seed=stream_seed(self.task.seed, "statistics")
            )
            self.classifier().load_state_dict(self.net.state_dict())
        super().begin_epoch(epoch)
        if starts_phase2:
            self._estimate_from_clean()
        if self.refit_predictions is not None:
            elapsed = (epoch - self.warmup) / (self.settings.handover * (self.epochs - self.warmup))
            self.refit_predictions["rho"].fill_(max(0.0, 1 - elapsed))

    def _statistics_samples(self) -> Iterator[Tensor]:
        """Return chunks of evenly spaced training samples, without augmentation, for BatchNorm statistics."""
        train = self.task.train
        limit = min(MAX_FIT_SAMPLES, MAX_STATISTICS_CHUNKS * chunk_size(tuple(train.x.shape[1:])))
        return (to_input(x, self.task.dtype) for x in chunks(_evenly_spaced(train, limit).x))

    def _build_phase2(self) -> None:
        """Also allocate T and log r; `_estimate_from_clean` or a checkpoint fills them."""
        super()._build_phase2()
        zeros = self.sgd.lr.new_zeros
        classes = len(self.task.train.classes)
        if self.settings.given:
            self.transition = Estimates(T=zeros(classes, classes))
        if self.settings.handover:
            self.refit_predictions = TensorState(log_r=zeros(len(self.task.train), classes), rho=zeros(()))

    @torch.no_grad()
    def _estimate_from_clean(self) -> None:
        """Compute T and log r from the clean set, with the network as it is at the end of warm-up."""
        if self.transition is not None:
            self.transition.get_buffer("T").copy_(self._transition_matrix())
        if self.refit_predictions is not None:
            weight, bias = self._refit_head_to_clean()
            log_r = [functional.linear(v, weight, bias).log_softmax(1) for v in self._features_of(self.task.train)]
            self.refit_predictions["log_r"].copy_(torch.cat(log_r))

    def _refit_head_to_clean(self) -> tuple[Tensor, Tensor]:
        """Return the last layer refit to the clean set, and copy it into the classifier and θ̃.

        It is not copied if the last layer has no bias, or if the norm of the refit weights is too large to continue
        training: this happens when features are not normalized and very small.
        """
        clean = _evenly_spaced(self.task.clean, MAX_FIT_SAMPLES)
        v = torch.cat(list(self._features_of(clean)))
        heads = [cast("nn.Linear", net.get_submodule(self.head)) for net in (self.net, self.classifier())]
        old = heads[0].weight
        old_bias = old.new_zeros(len(old)) if heads[0].bias is None else heads[0].bias
        weight, bias = refit_head(v, clean.true, old, old_bias, generator(self.task.seed, "folds"))
        if heads[0].bias is not None and weight.norm() <= MAX_HEAD_NORM_RATIO * old.norm():
            for head in heads:
                head.weight.copy_(weight)
                head.bias.copy_(bias)
        return weight, bias

    def _features_of(self, rows: Rows) -> Iterator[Tensor]:
        assert self.phase2 is not None
        return (self.phase2.g(to_input(x, self.task.dtype)) for x in chunks(rows.x))

    @torch.no_grad()
    def _transition_matrix(self) -> Tensor:
        """Return T: the mean prediction for each class of clean samples, uniform for a class without any."""
        clean, dtype = self.task.clean, self.task.dtype
        expected = torch.cat([predict(self.net, to_input(x, dtype)).softmax(1) for x in chunks(clean.x)])
        one_hot = functional.one_hot(clean.true, expected.shape[1]).to(expected)
        count = one_hot.sum(0)[:, None]
        uniform = torch.full_like(expected[:1], 1 / expected.shape[1])
        T = torch.where(count > 0, one_hot.T @ expected / count.clamp_min(1), uniform)
        return T if self.settings.matrix == "expected" else deconfounded(T, expected, clean.true)

    def step(self, batch: Batch) -> Tensor:
        """Take one step of warm-up or phase 2."""
        if self.phase2 is None:
            return super().step(batch)
        v, evidence = self._features_and_evidence(batch.x, batch.given, batch.index)
        return self.phase2.step(
            batch.x,
            batch.clean_x,
            batch.clean_y,
            seed=batch.seed,
            v=v,
            evidence=evidence,
            soft_loss=self.soft_label_loss(lambda z, log_y_hat: soft_cross_entropy(z, log_y_hat).mean(), batch),
        )

    @torch.no_grad()
    def _features_and_evidence(self, x: Tensor, given: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the features v of x and ρ log r + (1 − ρ)(π log q + κ log T_·y), or None if all terms are off."""
        s, net, evidence = self.settings, self.classifier(), []
        mode = net.training
        with mixed_precision_context():
            v, logits = (t.to(x.dtype) for t in features_and_logits(net.eval(), self.head, x))
        net.train(mode)
        if s.prior:
            evidence.append(s.prior * logits.log_softmax(1))
        if self.transition is not None:
            labeled = (given >= 0).to(x)[:, None]
            log_T = self.transition.get_buffer("T").clamp_min(MIN_TRANSITION_PROBABILITY).log()
            evidence.append(s.given * labeled * log_T.T[given.clamp_min(0)])
        if self.refit_predictions is not None:
            rho = self.refit_predictions["rho"]
            evidence = [(1 - rho) * term for term in evidence]
            evidence.append(rho * self.refit_predictions["log_r"][index])
        return v, torch.stack(evidence).sum(0) if evidence else None

    @torch.no_grad()
    def soft_labels(self) -> Tensor | None:
        """Return ŷ of all training rows, computed in eval mode without augmentation; None in warm-up."""
        if self.phase2 is None:
            return None
        labels, rows = [], torch.arange(len(self.task.train), device=self.task.train.given.device)
        for x in chunks(self.task.train.x):
            index, rows = rows[: len(x)], rows[len(x) :]
            v, evidence = self._features_and_evidence(to_input(x, self.task.dtype), self.task.train.given[index], index)
            generated = predict(self.phase2.m, v)
            labels.append((generated if evidence is None else generated + evidence).softmax(1))
        return torch.cat(labels)

    def components(self) -> dict[str, Stateful]:
        """Add T and log r. The label net reads features of θ̃, so there is no separate extractor."""
        components = super().components()
        components.pop("extractor", None)
        if self.transition is not None:
            components["transition"] = self.transition
        if self.refit_predictions is not None:
            components["refit_predictions"] = self.refit_predictions
        return components

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the model. log r belongs to the rows of the training run and is not part of it."""
        super().load_model_state_dict(tensors)
        self.refit_predictions = None


def _evenly_spaced(rows: Rows, limit: int) -> Rows:
    """Return at most `limit` rows, evenly spaced."""
    count = min(len(rows), limit)
    return rows.take(torch.arange(count) * len(rows) // max(count, 1))
