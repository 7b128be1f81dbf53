"""Bootstrapping: the target is a mixture of the given label and what the network itself believes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from torch.nn import functional

from metalabelnet.core.losses import cross_entropy, entropy_loss
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch


def soft_bootstrap(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """−Σ_j (β y_j + (1 − β) p_j) log p_j (Reed et al. 2015): β·CE + (1 − β)·entropy of p.

    Cross-entropy at β = 1, the entropy of the prediction at β = 0. The target moves with the prediction: the gradient
    goes through both, which is what makes it the minimum-entropy regularisation the paper names.
    """
    return beta * cross_entropy(logits, labels) + (1 - beta) * entropy_loss(logits)


def hard_bootstrap(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """−Σ_j (β y_j + (1 − β) z_j) log p_j with z one-hot at argmax p (Reed et al. 2015).

    Cross-entropy at β = 1, −log max_j p_j at β = 0, and cross-entropy for any β where y is the likeliest class.
    """
    surest = -functional.log_softmax(logits, dim=1).amax(1)
    return beta * cross_entropy(logits, labels) + (1 - beta) * surest


@dataclass(frozen=True, kw_only=True)
class BootstrapSettings:
    """Which of the two, and how far the given label is believed, with the paper's values."""

    kind: Literal["soft", "hard"] = field(
        default="soft",
        metadata={"help": "the network's share of the target: its probabilities, or the likeliest class"},
    )
    soft_beta: float = field(default=0.95, metadata={"help": "β, the weight of the given label in soft bootstrapping"})
    hard_beta: float = field(default=0.8, metadata={"help": "β, the weight of the given label in hard bootstrapping"})

    def __post_init__(self) -> None:
        for name in ("soft_beta", "hard_beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: it is the given label's share of the target, 0 to 1")


class Bootstrap(Method):
    """Minimises the soft or the hard bootstrapping loss over the labeled rows.

    The paper's experiments are on MNIST, faces and ImageNet, with networks of their own; of its settings only β carries
    over, so that `--preset own` and the common recipe are the same here.
    """

    summary = "targets that mix the given label with the network's own prediction"
    reference = "Reed et al. 2015"
    traceable = True
    Settings: ClassVar[type] = BootstrapSettings

    settings: BootstrapSettings

    def step(self, batch: Batch) -> Tensor:
        """A step against the loss of the kind chosen."""
        s = self.settings

        def loss(logits: Tensor) -> Tensor:
            if s.kind == "soft":
                return soft_bootstrap(logits, batch.given, s.soft_beta).mean()
            return hard_bootstrap(logits, batch.given, s.hard_beta).mean()

        return self.minimise(loss, batch.x, batch.seed)
