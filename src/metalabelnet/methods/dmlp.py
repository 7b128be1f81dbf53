"""DMLP, Decoupled Meta Label Purifier (Tu et al. 2023, https://arxiv.org/abs/2302.06810).

    1. learn features v of all rows                                   here: warm-up on the given labels
    2. Y ← purified labels, on fixed features (`metalabelnet.core.label_purifier`): the labels of all rows are moved by
       Adam so that a ridge regression on them, solved exactly, predicts the clean set; from time to time they are
       replaced by the predictions of a linear classifier that is trained on them
    3. θ ← θ − SGD(∇θ mean cross-entropy of f_θ(x) with argmax Y)     for the rest of the run

    f, θ   the classifier and its weights; v is the input of its last layer
    Y      a row of scores for each training row, first its one-hot given label

This is the paper's DMLP-Naive: the purified labels train a network with cross-entropy. (Its other variants pass them to
DivideMix and other methods.)

Departures from the paper, and the authors' code:

-   The paper learns features by self-supervision (SimCLR or MoCo), so that they do not depend on the given labels. Here
    they are those of the classifier at the end of warm-up, as for the other methods of this package: a run has no
    self-supervised stage. Keep the warm-up short, because memorized labels show in the features.
-   Training continues from the network of warm-up; the paper trains a new one.
-   All rows are one batch, with a small ridge penalty; the code solves batches of 7,000 rows without one.
-   The code keeps two purifiers that exchange their predictions, on the same features, and as published it never
    replaces the labels, because its condition excludes every epoch. There is one purifier here, and it replaces them
    every `period` steps, as the paper states.
-   The code weights the class balance of the linear classifier by 2,200, after two softmaxes. Here the weight is 1,
    after one.

The schedule of the paper's networks is not part of its code, and `--recipe own` equals `--recipe paper`. Rows without a
given label are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.core.label_purifier import purify_labels, standardize
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import gather_soft_labels
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.rows import UNLABELED, check_labels
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.head import features_and_logits, find_head

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.data.rows import Rows
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class DMLPSettings:
    """Settings with the authors' values for CIFAR-10."""

    steps: int = field(default=100, metadata={"help": "steps of the label purifier"})
    period: int = field(
        default=20, metadata={"help": "T, steps after which labels are replaced by a linear classifier's predictions"}
    )

    def __post_init__(self) -> None:
        for name in ("steps", "period"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} is out of range: give 1 or more")


class DMLP(Method):
    """Warm-up on the given labels, then cross-entropy on labels purified on its features with the clean set.

    Attributes
    ----------
    purified : TensorState or None
        "labels": the corrected labels of all rows, −1 without a given label; "scores": Y. None in warm-up.
    """

    traits = MethodTraits(
        summary="labels purified through an exactly solved ridge regression on features, then cross-entropy",
        reference="Tu et al. 2023",
        paper_url="https://arxiv.org/abs/2302.06810",
        needs_clean=True,
        has_warmup=True,
        traceable=True,
        relative_cost=1.5,
    )
    Settings: ClassVar[type] = DMLPSettings

    settings: DMLPSettings

    def __init__(self, task: Task, settings: DMLPSettings) -> None:
        super().__init__(task, settings)
        examples = to_input(task.train.x[:2], task.dtype)
        self.head = find_head(self.net, examples, len(task.train.classes), task.head)
        self.purified: TensorState | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Purify the labels at the end of warm-up."""
        if epoch >= self.task.recipe.warmup and self.purified is None:
            self.purified = self._empty_labels()
            self._purify()
        super().begin_epoch(epoch)

    def _empty_labels(self) -> TensorState:
        given, classes = self.task.train.given, len(self.task.train.classes)
        scores = ShardedTable.full(len(given), classes, 1 / classes, given, self.task.dtype)
        return TensorState(labels=given.clone(), scores=scores)

    @torch.no_grad()
    def _purify(self) -> None:
        assert self.purified is not None
        train, s = self.task.train, self.settings
        labeled = train.given != UNLABELED
        features = standardize(self._features(train)[labeled], self._features(self.task.clean))
        y = purify_labels(
            features,
            train.given[labeled],
            self.task.clean.true,
            classes=len(train.classes),
            steps=s.steps,
            period=s.period,
        )
        scores = y.clamp_min(0)
        total = scores.sum(1, keepdim=True)
        self.purified["labels"][labeled] = y.argmax(1)
        scores = torch.where(total > 0, scores / total.clamp_min(1e-12), 1 / y.shape[1])
        self.purified.table("scores")[labeled.nonzero()[:, 0]] = scores.to(self.task.dtype)

    def _features(self, rows: Rows) -> Tensor:
        """Return the features of rows in eval mode, without augmentation, in the precision that the ridge needs."""
        parts = [features_and_logits(self.net, self.head, to_input(x, self.task.dtype))[0] for x in chunks(rows.x)]
        return torch.cat(parts).double()

    def phase(self) -> str:
        """Return "warm-up" or "purified"."""
        return "warm-up" if self.purified is None else "purified"

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the given labels in warm-up, and on the purified labels after it."""
        labels = batch.given if self.purified is None else self.purified["labels"][batch.index]
        return self.cross_entropy_step(batch.views, labels, batch.seed)

    def soft_labels(self) -> ClassTable | None:
        """Return the purified scores of all rows, normalized; uniform without a given label; None in warm-up."""
        if self.purified is None:
            return None
        return gather_soft_labels(self.purified["scores"], self.task.train.given)

    def components(self) -> dict[str, Stateful]:
        """Add the purified labels after warm-up."""
        return super().components() if self.purified is None else super().components() | {"purified": self.purified}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either phase."""
        if "purified" in state:
            self.purified = self._empty_labels()
        super().load_state_dict(state)
        if self.purified is not None:
            check_labels(self.purified["labels"], len(self.task.train.classes), "purified labels")
