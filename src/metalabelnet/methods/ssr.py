"""SSR+, Sample Selection and Relabelling (Feng et al. 2022, https://arxiv.org/abs/2111.11288).

Before each epoch, with predictions p and features v of all rows in eval mode:

    y_i ← argmax p_i if max p_i > θ_r, else the given label            relabelling
    q_i ← share of each class among the labels y of the k nearest rows by cosine similarity, divided by the frequency
          of the class
    row i is selected if q_i(y_i) ≥ θ_s max q_i                        selection

and on each batch:

    x'_i, t'_i ← λ (x_i, e(y_i)) + (1 − λ) (x_j, e(y_j))    x strongly augmented, j a selected sample of the batch,
                                                            λ = max(b, 1 − b), b ~ Beta(α, α)
    θ, ψ ← θ, ψ − SGD(∇ [L_ce + w L_fc])

    L_ce   mean cross-entropy of x' with t' over the selected samples, in which each class has the same weight
    L_fc   −cos(h(z_s), z_w) with z = g(v), mean over all samples: feature consistency of a strongly (s) and a weakly
           (w) augmented copy, without a gradient through z_w
    g, h   the projection and prediction heads, with weights ψ
    e(y)   one-hot vector of a label
    w      weight of L_fc; with 0 the method is SSR

The clean set is used only to select the epoch. Rows without a given label are used in L_fc, vote, and are selected
once they have been relabeled.

Departures from the paper, and the authors' code:

-   A batch is drawn from all rows, and a selected sample has a weight inversely proportional to the frequency of its
    class among the selected rows. The code draws batches of selected rows with balanced classes, and other batches for
    L_fc. Both have the same mean.
-   One strongly augmented copy is mixed; the code mixes two. Strong augmentation is the package's, not AutoAugment.
-   A row does not vote for itself; in the code it does. k is at most half the mean number of rows of a class: the
    paper's 200 is 4 % of a class of CIFAR-10.
-   The learning rate is that of the recipe: cosine annealing to 0 with `--recipe own`, to 2 % in the code.
-   Samples that are not images have no strong augmentation: they are mixed without it, and L_fc is left out.

The mixing and the strong augmentation belong to the method. They replace the recipe's MixUp and its loss on strongly
augmented samples, which are ignored. The search for neighbors compares all pairs of rows in every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import forward, label_net_forward, trainable_parameters
from metalabelnet.core.label_net import uniform_parameter
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.mixmatch import draw_shares, labeled_loss, mix, one_hot
from metalabelnet.core.neighbors import balanced_votes, nearest_neighbors
from metalabelnet.core.ranks import own_span
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import gather_soft_labels
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.rows import UNLABELED, check_labels
from metalabelnet.data.strong_augment import can_augment_strongly
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.head import collect_features, features_and_logits, find_head
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

HIDDEN_UNITS, PROJECTION_SIZE = 256, 128  # of the heads, as in the authors' code


def relabel(p: Tensor, given: Tensor, threshold: float) -> Tensor:
    """Return the predicted class where its probability exceeds θ_r, elsewhere the given label."""
    confidence, predicted = p.max(1)
    return torch.where(confidence > threshold, predicted, given)


def select(labels: Tensor, votes: Tensor, threshold: float) -> Tensor:
    """Return whether the vote for the label of a row is at least θ_s of the largest one; never for the label −1."""
    vote = votes.gather(1, labels.clamp_min(0)[:, None])[:, 0]
    return (labels != UNLABELED) & (vote >= threshold * votes.max(1).values)


def balanced_weights(labels: Tensor, selected: Tensor, classes: int) -> Tensor:
    """Return 1/n_c for the selected rows of a class with n_c of them, and 0 for the other rows."""
    counts = (one_hot(labels, classes, torch.float32) * selected[:, None]).sum(0)
    return selected / counts.clamp_min(1)[labels.clamp_min(0)]


def selected_partners(selected: Tensor, keys: Tensor) -> Tensor:
    """Return, for each position in the batch, that of a selected sample: all in turn, in the order of random keys."""
    order = (keys + 2.0 * ~selected).argsort()
    return order[torch.arange(len(keys), device=keys.device) % selected.sum().clamp_min(1)]


class ConsistencyHeads(nn.Module):
    """The projection head g and the prediction head h: each linear, BatchNorm, ReLU, linear."""

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        for head, inputs in (("projection", features), ("prediction", PROJECTION_SIZE)):
            for layer, outputs, fan_in in (("first", HIDDEN_UNITS, inputs), ("last", PROJECTION_SIZE, HIDDEN_UNITS)):
                self.register_parameter(f"{head}_{layer}", uniform_parameter((outputs, fan_in), fan_in, generator))
            self.register_parameter(f"{head}_bias", uniform_parameter((PROJECTION_SIZE,), HIDDEN_UNITS, generator))
        # BatchNorm cancels a bias of the first layer, and has its own.
        self.projection_norm, self.prediction_norm = nn.BatchNorm1d(HIDDEN_UNITS), nn.BatchNorm1d(HIDDEN_UNITS)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return z = g(v) and h(z)."""
        z = self._head("projection", v)
        return z, self._head("prediction", z)

    def _head(self, name: str, v: Tensor) -> Tensor:
        hidden = self.get_submodule(f"{name}_norm")(functional.linear(v, self.get_parameter(f"{name}_first")))
        return functional.linear(
            functional.relu(hidden), self.get_parameter(f"{name}_last"), self.get_parameter(f"{name}_bias")
        )


@dataclass(frozen=True, kw_only=True)
class SSRSettings:
    """Settings with the authors' values for CIFAR-10."""

    relabel_threshold: float = field(
        default=0.9, metadata={"help": "θ_r, rows predicted with a larger probability are relabeled; 1: off"}
    )
    select_threshold: float = field(
        default=1.0, metadata={"help": "θ_s, least vote of a selected label, relative to the largest vote"}
    )
    neighbors: int = field(
        default=200, metadata={"help": "k, neighbors that vote; at most half the mean number of rows of a class"}
    )
    alpha: float = field(default=4.0, metadata={"help": "α, parameter of the Beta distribution of the mixing share"})
    consistency: float = field(default=1.0, metadata={"help": "w, weight of the feature consistency; 0: SSR"})

    def __post_init__(self) -> None:
        for name in ("relabel_threshold", "select_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name):g} is out of range: give a number from 0 to 1")
        if self.neighbors < 1:
            raise InputError(f"neighbors={self.neighbors} is out of range: give 1 or more")
        if self.alpha <= 0:
            raise InputError(f"alpha={self.alpha:g} is out of range: give a positive number")


class SSR(Method):
    """Train on rows whose label agrees with its neighbors, after relabelling confident ones.

    Attributes
    ----------
    heads, heads_sgd : ConsistencyHeads and SGD, or None
        g and h and their optimizer; None without feature consistency.
    selection : TensorState or None
        Of all rows: "labels" y, "weights" (0 where not selected), "p" the predictions. None before the first epoch.
    draws : Tensor
        (2, N) random numbers of the epoch: the mixing share λ, which a batch takes from its first row, and the keys
        that order the partners.
    """

    traits = MethodTraits(
        summary="selects rows whose label wins the vote of their neighbors, relabels confident rows",
        reference="Feng et al. 2022",
        paper_url="https://arxiv.org/abs/2111.11288",
        uses_unlabeled=True,
        traceable=True,
        relative_cost=2.7,
        own_recipe={
            "epochs": 300,
            "lr": 0.02,
            "lr_schedule": "cosine",
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
        },
    )
    Settings: ClassVar[type] = SSRSettings

    settings: SSRSettings

    def __init__(self, task: Task, settings: SSRSettings) -> None:
        super().__init__(task, settings)
        train, classes = task.train, len(task.train.classes)
        self.strong_augment_from = 0 if can_augment_strongly(train.x) else None
        self.head = find_head(self.net, to_input(train.x[:2], task.dtype), classes, task.head)
        self.heads: ConsistencyHeads | None = None
        if settings.consistency and self.strong_augment_from is not None:
            width = int(self.net.get_submodule(self.head).in_features)  # type: ignore[arg-type]
            self.heads = ConsistencyHeads(width, generator(task.seed, "consistency heads"))
            self.heads.to(train.x.device, task.dtype)
            self.heads_sgd = self.make_sgd(self.heads)
        self.neighbors = max(1, min(settings.neighbors, len(train) // (2 * classes)))
        self.selection: TensorState | None = None
        self.draws = torch.zeros(2, len(train), dtype=task.dtype, device=train.given.device)

    def labeled_only(self, epoch: int) -> bool:
        """Return False: rows without a given label are used as well."""
        return False

    def begin_epoch(self, epoch: int) -> None:
        """Select rows before the first epoch; draw the random numbers of the epoch."""
        if self.selection is None:
            self.selection = self._empty_selection()
            self._select()
        super().begin_epoch(epoch)
        rows, seed = self.draws.shape[1], self.task.seed
        self.draws[0] = draw_shares(rows, self.settings.alpha, stream_seed(seed, "mix share", epoch))
        self.draws[1] = torch.rand(rows, generator=generator(seed, "mix partner", epoch))

    def end_epoch(self, epoch: int) -> None:
        """Relabel and select rows for the next epoch."""
        self._select()

    def _empty_selection(self) -> TensorState:
        given, classes = self.task.train.given, len(self.task.train.classes)
        weights = torch.zeros(len(given), dtype=self.task.dtype, device=given.device)
        p = ShardedTable.full(len(given), classes, 0, given, self.task.dtype)
        return TensorState(labels=given.clone(), weights=weights, p=p)

    @torch.no_grad()
    def _select(self) -> None:
        assert self.selection is not None
        s, train, classes = self.settings, self.task.train, len(self.task.train.classes)
        parts = [features_and_logits(self.net, self.head, to_input(x, self.task.dtype)) for x in chunks(train.x)]
        p = torch.cat([logits for _, logits in parts]).softmax(1)
        labels = relabel(p, train.given, s.relabel_threshold)
        v = functional.normalize(torch.cat([features for features, _ in parts]), dim=1)
        votes = balanced_votes(nearest_neighbors(v, self.neighbors), labels, classes)
        selected = select(labels, votes, s.select_threshold)
        self.selection.table("p").load(p)
        self.selection["labels"].copy_(labels)
        self.selection["weights"].copy_(balanced_weights(labels, selected, classes))

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the selected samples and on the feature consistency of all."""
        assert self.selection is not None
        theta, views = trainable_parameters(self.net), batch.views
        x = views.weak if views.strong is None else views.strong
        labels, weights = self.selection["labels"][batch.index], self.selection["weights"][batch.index]
        share = self.draws[0, batch.index[:1]][0]
        partner = selected_partners(weights > 0, self.draws[1, batch.index])
        targets = one_hot(labels, len(self.task.train.classes), x.dtype)
        targets = self._smooth(mix(targets, partner, share))
        logits = forward(self.net, mix(x, partner, share), theta, seed=batch.seed, update_statistics=True)
        loss = labeled_loss(logits, targets, weights)
        if self.heads is None or views.strong is None:
            apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
            return loss.detach()
        psi = trainable_parameters(self.heads)
        loss = loss + self.settings.consistency * self._feature_consistency(self.heads, batch)
        by_weight = gradients(loss, {**theta, **{f"heads.{name}": weight for name, weight in psi.items()}})
        apply_gradients(self.heads_sgd, psi.values(), [by_weight[f"heads.{name}"] for name in psi])
        apply_gradients(self.sgd, theta.values(), [by_weight[name] for name in theta])
        return loss.detach()

    def _smooth(self, targets: Tensor) -> Tensor:
        """Return the targets with the recipe's label smoothing."""
        epsilon = self.task.recipe.label_smoothing
        return (1 - epsilon) * targets + epsilon / targets.shape[1]

    def _feature_consistency(self, heads: ConsistencyHeads, batch: Batch) -> Tensor:
        """Return L_fc = −cos(h(z_s), z_w)."""
        theta, strong = trainable_parameters(self.net), batch.views.strong
        assert strong is not None
        with collect_features(self.net, self.head) as features:
            with torch.no_grad():
                forward(self.net, batch.x, theta, seed=batch.seed + 1, update_statistics=True)
            forward(self.net, strong, theta, seed=batch.seed + 2, update_statistics=True)
        weak, strong = (v.to(batch.x.dtype) for v in features)
        with torch.no_grad():
            z_w, _ = label_net_forward(heads, weak, seed=batch.seed, update_statistics=True)
        _, prediction = label_net_forward(heads, strong, seed=batch.seed, update_statistics=True)
        return -functional.cosine_similarity(prediction, z_w, dim=1).mean()

    def soft_labels(self) -> ClassTable | None:
        """Return the labels of selected rows, and predictions for the others; None before the first epoch."""
        if self.selection is None:
            return None
        p, own = self.selection["p"], own_span(len(self.task.train))
        labels, selected = self.selection["labels"][own], self.selection["weights"][own] > 0
        soft_labels = torch.where(selected[:, None], one_hot(labels, p.shape[1], p.dtype), p)
        return gather_soft_labels(soft_labels, self.task.train.given)

    def components(self) -> dict[str, Stateful]:
        """Add the heads and their optimizer, and the selection."""
        components = super().components()
        if self.heads is not None:
            components |= {"heads": self.heads, "heads_sgd": self.heads_sgd}
        return components if self.selection is None else components | {"selection": self.selection}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint."""
        if "selection" in state:
            self.selection = self._empty_selection()
        super().load_state_dict(state)
        if self.selection is not None:
            check_labels(self.selection["labels"], len(self.task.train.classes), "selected labels")
