"""Meta-Weight-Net: each sample weighted by a function of its loss that the clean samples shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from metalabelnet.core.algorithm import descend
from metalabelnet.core.forward_ad_cache import Products
from metalabelnet.core.forward_pass import Theta, forward, trainable
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import Differentiation, MetaGradient, gradients
from metalabelnet.core.optimizers import Adam
from metalabelnet.core.weight_net import WeightNet
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, Task
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part


def weighted_loss(logits: Tensor, labels: Tensor, weight_of: Callable[[Tensor], Tensor]) -> Tensor:
    """V(l) l with l = −log p_y (Shu et al. 2019, eq. 1): cross-entropy for V = 1, nothing for V = 0.

    V reads the value of the loss and is no part of its derivative by the logits, which is V(l) (p − onehot_y): a
    weight says how much a sample counts, and the classifier cannot lower its loss by moving the weight. In the
    authors' code, too, the input of V is cut off from the graph, in the look-ahead and in the step.
    """
    loss = cross_entropy(logits, labels)
    return weight_of(loss.detach()) * loss


@dataclass(frozen=True, kw_only=True)
class MetaWeightNetSettings:
    """The weight net and its optimizer, with the authors' values."""

    hidden: int = field(default=100, metadata={"help": "hidden units of the weight net"})
    weight_net_lr: float = field(default=1e-3, metadata={"help": "rate of the weight net's Adam"})
    weight_net_decay: float = field(default=1e-4, metadata={"help": "weight decay of the weight net's Adam"})
    differentiation: Differentiation = field(default="exact", metadata={"help": "how the meta-gradient is computed"})
    clean_updates_statistics: bool = field(
        default=False,
        metadata={"help": "whether the pass over the clean batch updates BatchNorm's running statistics"},
    )

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise InputError(f"hidden={self.hidden}: the weight net needs hidden units, give 1 or more")


class MetaWeightNet(Method):
    """Three steps a batch, from the first epoch on, with x_m, y_m the clean batch.

        θ̂ = θ − λ ∇θ (1/N) Σ_i V_Θ(l_i) l_i        the look-ahead, λ the classifier's present rate
        Θ goes by Adam against ∇Θ L_meta(f_θ̂(x_m), y_m)
        θ goes by SGD against ∇θ (1/N) Σ_i V_Θ(l_i) l_i, with the new Θ

    The look-ahead is a plain step, without momentum and weight decay. The weights are not normalised over the
    batch and V goes by Adam, as in the authors' later code; their first script divided by the sum of the weights and
    moved V by SGD. They look ahead in a copy of the network, so that the clean batch leaves no trace in the
    running statistics; `clean_updates_statistics` changes that.

    The paper's own settings are those for uniform noise, there with a WRN-28-10 and 1,000 clean images augmented
    like the others (here clean images are not). With a ResNet-32, for flips, it took 60 epochs and drops at 40 and 50.
    """

    summary = "each sample weighted by a learned function of its loss, so that the clean loss falls"
    reference = "Shu et al. 2019"
    needs_clean = True
    traceable = True
    Settings: ClassVar[type] = MetaWeightNetSettings
    own: ClassVar[dict[str, Any]] = {
        "epochs": 40,
        "lr": 0.1,
        "lr_milestones": (36, 38),
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "batch_size": 100,
    }

    settings: MetaWeightNetSettings

    def __init__(self, task: Task, settings: MetaWeightNetSettings) -> None:
        super().__init__(task, settings)
        self.weight_net = WeightNet(settings.hidden, generator(task.seed, "weight net"))
        self.weight_net.to(task.train.x.device, task.dtype)
        self.adam = Adam(
            self.weight_net.parameters(), lr=settings.weight_net_lr, weight_decay=settings.weight_net_decay
        )
        self.meta_gradient = MetaGradient(settings.differentiation)

    def step(self, batch: Batch) -> Tensor:
        """Look ahead, move the weight net, then the classifier."""
        net, v, s = self.net, self.weight_net, self.settings
        theta, big_theta, products = trainable(net), list(v.parameters()), Products()

        def logits_at(weights: Theta, *, first: bool = False) -> Tensor:
            return forward(net, batch.x, weights, seed=batch.seed, update_statistics=first, products=products)

        def l_train(logits: Tensor) -> Tensor:
            return weighted_loss(logits, batch.given, v).mean()

        def l_meta(weights: Theta) -> Tensor:
            seed, statistics = batch.seed + 1, s.clean_updates_statistics
            return cross_entropy(
                forward(net, batch.clean_x, weights, seed=seed, update_statistics=statistics), batch.clean_y
            ).mean()

        logits = logits_at(theta, first=True)
        by_big_theta = self.meta_gradient(
            theta=theta,
            phi=big_theta,
            logits=logits,
            logits_at=logits_at,
            training_loss=l_train,
            meta_loss=l_meta,
            inner_step=self.sgd.lr,
        )
        descend(self.adam, big_theta, by_big_theta)
        loss = l_train(logits)
        descend(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def parts(self) -> dict[str, Part]:
        """The weight net and its Adam too."""
        return super().parts() | {"weight_net": self.weight_net, "adam": self.adam}
