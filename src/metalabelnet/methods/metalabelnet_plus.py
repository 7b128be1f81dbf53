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
from typing import TYPE_CHECKING, ClassVar

from metalabelnet.core.losses import LossScale  # noqa: TC001  (read by get_type_hints)
from metalabelnet.errors import InputError
from metalabelnet.methods.generated import Generated, LabelNetSettings

if TYPE_CHECKING:
    from metalabelnet.methods.method import Task


@dataclass(frozen=True, kw_only=True)
class MetaLabelNetPlusSettings(LabelNetSettings):
    """The ingredients, one set for all data and noises, and the rest of MetaLabelNet."""

    loss_scale: LossScale = field(
        default="sum",
        metadata={"help": "Lc and Le as the sum over classes (the equations) or the mean (MetaLabelNet's default)"},
    )
    clean_weight: float = field(default=1.0, metadata={"help": "γ, how much θ follows the clean batch; 0: off"})
    warmup_share: float = field(default=0.35, metadata={"help": "how much of the schedule's warm-up is taken; 1: off"})

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_share <= 1:
            raise InputError(f"warmup_share={self.warmup_share} is not a share in [0, 1]: 1 takes all of the warm-up")


class MetaLabelNetPlus(Generated):
    """Phase 1 is cross-entropy on the labeled rows, and short; phase 2 goes over all rows.

    Algorithm 1 lets the clean set teach the label net alone; what it says about the classifier itself is computed on
    the way, as g, and thrown away. Here the classifier takes it: it learns from the clean samples as one would without
    any of this, and from the soft labels beside them. Warm-up ends early, before wrong labels are learned by heart; it
    is rounded up, because the label net has nothing to read in a network that has learned nothing.
    """

    summary = "MetaLabelNet whose classifier follows the clean samples too, after a short warm-up"
    reference = "this package, after Algan and Ulusoy 2021"
    Settings: ClassVar[type] = MetaLabelNetPlusSettings

    settings: MetaLabelNetPlusSettings

    def __init__(self, task: Task, settings: MetaLabelNetPlusSettings) -> None:
        super().__init__(task, settings)
        self.clean_weight = settings.clean_weight
        self.learns_from_clean = settings.clean_weight > 0
        self.warmup = self.candidates_from = math.ceil(settings.warmup_share * task.schedule.warmup)
