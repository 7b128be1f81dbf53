"""What the methods with a label net share: warm-up on the given labels, then soft labels that it generates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.algorithm import Phase2, Phase2Settings
from metalabelnet.core.forward_pass import predict
from metalabelnet.core.label_net import LabelNetKind, make_label_net
from metalabelnet.core.optimizers import Adam
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import DiskTensor, chunks
from metalabelnet.methods.method import Method, Task
from metalabelnet.nets.head import Extractor, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


@dataclass(frozen=True, kw_only=True)
class LabelNetSettings(Phase2Settings):
    """Phase 2, the label net and its optimizer, with the paper's values for CIFAR-10."""

    beta: float = field(default=1e-2, metadata={"help": "β, the rate of the label net's Adam"})
    label_net_decay: float = field(default=1e-4, metadata={"help": "weight decay of the label net's Adam"})
    label_net: LabelNetKind = field(
        default="single-layer", metadata={"help": "the label net: a single layer, or an MLP with one hidden layer"}
    )


class Generated(Method):
    """Phase 1 is cross-entropy on the labeled rows; phase 2 goes over all rows and reads no given label.

    warmup        the epochs of phase 1
    clean_weight  how much the classifier follows the clean batch in phase 2
    """

    traceable = True
    unlabeled = "used"
    needs_clean = True
    has_warmup = True
    clean_weight: float = 0.0

    settings: LabelNetSettings

    def __init__(self, task: Task, settings: LabelNetSettings) -> None:
        super().__init__(task, settings)
        self.warmup = task.schedule.warmup
        few = to_input(task.train.x[:2], task.dtype)
        self.head = find_head(self.net, few, len(task.train.classes), task.head)
        self.phase2: Phase2 | None = None
        self.features: list[Tensor] | None = None

    def labeled_only(self, epoch: int) -> bool:
        """Phase 2 takes unlabeled rows in."""
        return epoch < self.warmup

    def begin_epoch(self, epoch: int) -> None:
        """At the end of warm-up, build what phase 2 needs."""
        super().begin_epoch(epoch)
        if epoch >= self.warmup and self.phase2 is None:
            self._build_phase2()

    def _build_phase2(self) -> None:
        s = self.settings
        self.features = None
        g = Extractor(self.net, self.head)
        randomness = generator(self.task.seed, "label net")
        m = make_label_net(s.label_net, g.width, len(self.task.train.classes), randomness)
        m.to(self.task.train.x.device, self.task.dtype)
        adam = Adam(m.parameters(), lr=s.beta, weight_decay=s.label_net_decay)
        self.phase2 = Phase2(self.net, g, m, sgd=self.sgd, adam=adam, settings=s, clean_weight=self.clean_weight)

    def phase(self) -> str:
        """Warm-up, or phase 2."""
        return "warm-up" if self.phase2 is None else "phase 2"

    def step(self, batch: Batch) -> Tensor:
        """Warm-up on the given labels, or one iteration of Algorithm 1 that does not see them."""
        if self.phase2 is None:
            return self.learn(batch.x, batch.given, batch.seed)
        return self.phase2.step(batch.x, batch.clean_x, batch.clean_y, seed=batch.seed)

    @torch.no_grad()
    def soft_labels(self) -> Tensor | None:
        """ŷ for every training row, from the samples as they are, without augmentation, dropout or batch statistics."""
        if self.phase2 is None:
            return None
        return torch.cat([predict(self.phase2.m, v).exp() for v in self._features()])

    def _features(self) -> Iterable[Tensor]:
        """g(x) of the training rows, a piece at a time.

        g is fixed from the end of warm-up on: computed once, and kept where the samples themselves fit into memory.
        """
        if self.features is not None:
            return self.features
        assert self.phase2 is not None
        g, dtype = self.phase2.g, self.task.dtype
        pieces = (g(to_input(x, dtype)) for x in chunks(self.task.train.x))
        if isinstance(self.task.train.x, DiskTensor):
            return pieces
        self.features = list(pieces)
        return self.features

    def parts(self) -> dict[str, Part]:
        """From phase 2 on, the extractor, the label net and its Adam too."""
        if self.phase2 is None:
            return super().parts()
        p = self.phase2
        return super().parts() | {"extractor": p.g, "label_net": p.m, "adam": p.adam}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there, in the phase it was."""
        if "adam" in state:
            self._build_phase2()
        self.features = None
        super().load_state(state)

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Take over classifier, extractor and label net."""
        if any(name.startswith("label_net.") for name in tensors) and self.phase2 is None:
            self._build_phase2()
        self.features = None
        super().load_model(tensors)
