"""Meta-Weight-Net (Shu et al. 2019, https://arxiv.org/abs/1902.07379).

    θ̂ ← θ − λ ∇θ (1/N) Σ_i V_Θ(l_i) l_i                look-ahead
    Θ ← Θ − Adam(∇Θ L_meta(f_θ̂(x_m), y_m))             meta-gradient, through θ̂
    θ ← θ − SGD_λ(∇θ (1/N) Σ_i V_Θ(l_i) l_i)           with the new Θ

    x_m, y_m  a batch of the clean set
    f, θ      the classifier and its weights
    V, Θ      the weight net, which maps the loss of a sample to its weight, and its weights
    l_i       cross-entropy of sample i with its given label
    λ         the current learning rate of the classifier
    L_meta    cross-entropy on the clean batch

There is no warm-up. The look-ahead has neither momentum nor weight decay. The weights are not normalized over the batch
and V is trained with Adam, as in the authors' later code; their first code divides by the sum of the weights and uses
SGD. The authors look ahead in a copy of the network, so the clean batch does not change the running statistics of
BatchNorm; `clean_updates_statistics` changes this.

`--recipe own` has the paper's settings for uniform noise, there with a WRN-28-10 and 1,000 clean images that are
augmented (here clean images are not). For class-dependent noise the paper uses a ResNet-32, 60 epochs, and milestones
at 40 and 50.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import Differentiation, MetaGradient, gradients
from metalabelnet.core.optimizers import Adam
from metalabelnet.core.weight_net import WeightNet
from metalabelnet.errors import InputError
from metalabelnet.methods.look_ahead import batch_meta_gradient
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def weighted_loss(logits: Tensor, labels: Tensor, weight_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return V(l) l of every sample, with l = −log p_y (eq. 1 of the paper).

    V reads the detached loss, as in the authors' code, so the derivative by the logits is V(l) (p − onehot_y): the
    classifier cannot lower its loss by changing the weights.
    """
    loss = cross_entropy(logits, labels)
    return weight_of(loss.detach()) * loss


@dataclass(frozen=True, kw_only=True)
class MetaWeightNetSettings:
    """Settings of the weight net and its optimizer, with the authors' values."""

    hidden: int = field(default=100, metadata={"help": "number of hidden units of the weight net"})
    weight_net_lr: float = field(default=1e-3, metadata={"help": "learning rate of the weight net (Adam)"})
    weight_net_decay: float = field(default=1e-4, metadata={"help": "weight decay of the weight net (Adam)"})
    differentiation: Differentiation = field(default="exact", metadata={"help": "how the meta-gradient is computed"})
    clean_updates_statistics: bool = field(
        default=False,
        metadata={"help": "whether the forward pass over the clean batch updates BatchNorm's running statistics"},
    )

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise InputError(f"hidden={self.hidden} is out of range: give 1 or more hidden units")


class MetaWeightNet(Method):
    """Minimize the cross-entropy of the labeled rows, weighted by the weight net.

    Attributes
    ----------
    weight_net, adam : WeightNet, Adam
        V and its optimizer.
    """

    traits = MethodTraits(
        summary="sample weights from a net that reads the loss, meta-learned to lower the loss on the clean set",
        reference="Shu et al. 2019",
        paper_url="https://arxiv.org/abs/1902.07379",
        needs_clean=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=3.2,
        own_recipe={
            "epochs": 40,
            "lr": 0.1,
            "lr_milestones": (36, 38),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 100,
        },
    )
    Settings: ClassVar[type] = MetaWeightNetSettings

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
        """Look ahead, update the weight net, then the classifier."""
        v, theta = self.weight_net, trainable_parameters(self.net)
        theta_v = list(v.parameters())

        def l_train(logits: Tensor, given: Tensor) -> Tensor:
            return weighted_loss(logits, given, v).mean()

        logits, gradient_v = batch_meta_gradient(
            self.meta_gradient,
            self.net,
            theta,
            batch,
            phi=theta_v,
            training_loss=lambda z: l_train(z, batch.given),
            inner_step=self.sgd.lr,
            clean_updates_statistics=self.settings.clean_updates_statistics,
        )
        apply_gradients(self.adam, theta_v, gradient_v)
        loss = self.recipe_loss(self.net, theta, l_train, batch.views, (batch.given,), batch.seed, logits=logits)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def components(self) -> dict[str, Stateful]:
        """Add the weight net and its Adam."""
        return super().components() | {"weight_net": self.weight_net, "adam": self.adam}
