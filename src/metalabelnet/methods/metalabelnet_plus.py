"""MetaLabelNet whose classifier follows the clean set too. With every ingredient off it is MetaLabelNet to the bit.

    θ, φ      the weights of the classifier and of the label net
    ŷ         the soft labels of a training batch, made by the label net
    L_c, L_e  the losses of Algorithm 1 in step 3: together −Σ p log ŷ
    g         the gradient of the clean loss after the look-ahead, ∇θ̂ L_meta(θ̂), which the meta-gradient needs anyway

    φ ← φ − Adam(∂L_meta/∂φ)                   as in Algorithm 1
    θ ← θ − SGD(∇θ (L_c + L_e) + γ g)          γ is `clean_weight`

after a share of the schedule's warm-up. The pass that gives g is in the iteration already: a step costs what it costs
in MetaLabelNet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.core.algorithm import Phase2, Phase2Settings
from metalabelnet.core.labelnet import LabelNetKind, make_label_net
from metalabelnet.core.losses import LossScale  # noqa: TC001  (read by get_type_hints)
from metalabelnet.core.optimizers import Adam
from metalabelnet.core.passes import predict
from metalabelnet.data.batches import to_input
from metalabelnet.data.stored import chunks
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, Task
from metalabelnet.nets.head import Extractor, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


@dataclass(frozen=True, kw_only=True)
class MetaLabelNetPlusSettings(Phase2Settings):
    """The ingredients, one set for all data and noises, and the rest of MetaLabelNet."""

    loss_scale: LossScale = field(
        default="sum",
        metadata={"help": "Lc and Le as the sum over classes (the equations) or the mean (MetaLabelNet's default)"},
    )
    clean_weight: float = field(default=1.0, metadata={"help": "γ, how much θ follows the clean batch; 0: off"})
    warmup_share: float = field(default=0.35, metadata={"help": "how much of the schedule's warm-up is taken; 1: off"})
    beta: float = field(default=1e-2, metadata={"help": "β, the rate of the label net's Adam"})
    label_net_decay: float = field(default=1e-4, metadata={"help": "weight decay of the label net's Adam"})
    labelnet: LabelNetKind = field(
        default="single-layer", metadata={"help": "the label net: a single layer, or an MLP with one hidden layer"}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_share <= 1:
            raise InputError(f"warmup_share={self.warmup_share} is not a share in [0, 1]: 1 takes all of the warm-up")


class MetaLabelNetPlus(Method):
    """Phase 1 is cross-entropy on the labeled rows, and short; phase 2 goes over all rows.

    Algorithm 1 lets the clean set teach the label net alone; what it says about the classifier itself is computed on
    the way, as g, and thrown away. Here the classifier takes it: it learns from the clean samples as one would without
    any of this, and from the soft labels beside them. Warm-up ends early, before wrong labels are learned by heart; it
    is rounded up, because the label net has nothing to read in a network that has learned nothing.
    """

    summary = "MetaLabelNet whose classifier follows the clean samples too, after a short warm-up"
    reference = "this package, after Algan and Ulusoy 2021"
    recordable = True
    Settings: ClassVar[type] = MetaLabelNetPlusSettings
    unlabeled = "used"
    needs_clean = True
    has_warmup = True

    settings: MetaLabelNetPlusSettings

    def __init__(self, task: Task, settings: MetaLabelNetPlusSettings) -> None:
        super().__init__(task, settings)
        self.learns_from_clean = settings.clean_weight > 0
        self.warmup = self.candidates_from = math.ceil(settings.warmup_share * task.schedule.warmup)
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
        m = make_label_net(s.labelnet, g.width, len(self.task.train.classes), randomness)
        m.to(self.task.train.x.device, self.task.dtype)
        adam = Adam(m.parameters(), rate=s.beta, weight_decay=s.label_net_decay)
        self.phase2 = Phase2(self.net, g, m, sgd=self.sgd, adam=adam, settings=s, clean_weight=s.clean_weight)

    def phase(self) -> str:
        """Warm-up, or phase 2."""
        return "warm-up" if self.phase2 is None else "phase 2"

    def step(self, batch: Batch) -> Tensor:
        """Warm-up on the given labels, or one iteration that does not see them."""
        if self.phase2 is None:
            return self.learn(batch.x, batch.given, batch.seed)
        return self.phase2.step(batch.x, batch.clean_x, batch.clean_y, seed=batch.seed)

    @torch.no_grad()
    def soft_labels(self) -> Tensor | None:
        """ŷ for every training row, from the samples as they are, without augmentation, dropout or batch statistics."""
        if self.phase2 is None:
            return None
        if self.features is None:  # g is fixed from the end of warm-up on: computed once
            self.features = [self.phase2.g(to_input(x, self.task.dtype)) for x in chunks(self.task.train.x)]
        return torch.cat([predict(self.phase2.m, v).exp() for v in self.features])

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
