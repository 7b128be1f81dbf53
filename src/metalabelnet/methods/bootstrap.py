"""Bootstrapping (Reed et al. 2015, https://arxiv.org/abs/1412.6596).

    t ← β y + (1 − β) p        soft
    t ← β y + (1 − β) z        hard
    θ ← θ − SGD(∇θ (1/N) Σ_i −Σ_j t_ij log p_ij)

    p   the prediction softmax(f_θ(x))
    y   the given label, one-hot
    z   the most likely class argmax p, one-hot
    t   the target
    β   weight of the given label

The paper's experiments use MNIST, faces and ImageNet with other networks; only β carries over. `--recipe own` therefore
equals the common schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from torch.nn import functional

from metalabelnet.core.losses import cross_entropy, entropy_loss
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch


def soft_bootstrap(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return −Σ_j (β y_j + (1 − β) p_j) log p_j of every sample: β·CE + (1 − β)·entropy of p.

    This is cross-entropy at β = 1 and the entropy of the prediction at β = 0. The gradient passes through the
    prediction in the target, too; this gives the minimum-entropy regularization that the paper describes.
    """
    return beta * cross_entropy(logits, labels) + (1 - beta) * entropy_loss(logits)


def hard_bootstrap(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return −Σ_j (β y_j + (1 − β) z_j) log p_j of every sample, with z one-hot at argmax p.

    This is cross-entropy at β = 1, −log max_j p_j at β = 0, and cross-entropy for any β if y is the most likely class.
    """
    self_loss = -functional.log_softmax(logits, dim=1).amax(1)
    return beta * cross_entropy(logits, labels) + (1 - beta) * self_loss


@dataclass(frozen=True, kw_only=True)
class BootstrapSettings:
    """Settings with the paper's values."""

    kind: Literal["soft", "hard"] = field(
        default="soft",
        metadata={
            "help": "what is mixed into the target: predicted probabilities (soft) or the most likely class (hard)"
        },
    )
    soft_beta: float = field(default=0.95, metadata={"help": "β, weight of the given label in soft bootstrapping"})
    hard_beta: float = field(default=0.8, metadata={"help": "β, weight of the given label in hard bootstrapping"})

    def __post_init__(self) -> None:
        for name in ("soft_beta", "hard_beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)} is out of range: give a number from 0 to 1")


class Bootstrap(Method):
    """Minimize the soft or the hard bootstrapping loss over the labeled rows."""

    traits = MethodTraits(
        summary="targets that mix the given label with the network's own prediction",
        reference="Reed et al. 2015",
        paper_url="https://arxiv.org/abs/1412.6596",
        traceable=True,
    )
    Settings: ClassVar[type] = BootstrapSettings

    settings: BootstrapSettings

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the chosen loss."""
        s = self.settings

        def loss(logits: Tensor, given: Tensor) -> Tensor:
            if s.kind == "soft":
                return soft_bootstrap(logits, given, s.soft_beta).mean()
            return hard_bootstrap(logits, given, s.hard_beta).mean()

        return self.sgd_step(loss, batch.views, (batch.given,), batch.seed)
