"""Algorithm 1, phase 2: one iteration on one batch.

    x         a batch of training samples; their given labels are not read
    x_m, y_m  a batch of clean samples and their labels
    f, θ      the classifier and its weights, learned by SGD at rate λ
    g         the feature extractor: the classifier as it was at the end of warm-up, without its last layer
    m, φ      the label net and its weights, learned by Adam at rate β
    v, ŷ      features and soft labels of x
    α         the inner step

Which pass does what (f is in train mode, g in eval mode):

    pass                        weights  BatchNorm uses    running statistics  dropout mask
    g(x)                        fixed    those of warm-up  untouched           none
    f(x), for steps 1 and 3     θ        the batch's       updated             the batch's
    f(x), for the meta-gradient θ ± g    the batch's       untouched           the same
    f(x_m)                      θ̂        the batch's       updated, or not     one of its own
    m(v) in step 1              φ        the batch's       updated             the batch's second
    m(v) in step 3              new φ    the batch's       untouched           the same

(The paper's label net, one layer, has neither BatchNorm nor dropout.)

The authors' code updates the running statistics in the pass over x_m too, and so does the default here;
`clean_updates_statistics=False` leaves them to the training batches.

The iteration takes soft labels from whatever makes them: a label net (`Phase2`), or a table with a row for each
sample, where φ are the label logits of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from metalabelnet.core.forward_ad_cache import Products
from metalabelnet.core.forward_pass import Theta, forward, generate, trainable
from metalabelnet.core.losses import (
    LossScale,
    classification_loss,
    cross_entropy,
    entropy_loss,
    scale_factor,
)
from metalabelnet.core.meta_gradient import Differentiation, MetaGradient, gradients

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from metalabelnet.core.optimizers import Optimizer

SoftLoss = Callable[[Theta, Tensor, Tensor], Tensor]  # θ, f_θ(x), log ŷ ↦ a loss


@dataclass(frozen=True, kw_only=True)
class Phase2Settings:
    """What phase 2 leaves open, with the paper's values."""

    inner_step: float = field(default=1.0, metadata={"help": "α, the length of the look-ahead step"})
    entropy_weight: float = field(default=1.0, metadata={"help": "weight of the entropy loss in step 3"})
    loss_scale: LossScale = field(
        default="per-class-mean",
        metadata={"help": "Lc and Le as the mean over classes (the authors' code) or the sum (the equations)"},
    )
    differentiation: Differentiation = field(default="exact", metadata={"help": "how the meta-gradient is computed"})
    clean_updates_statistics: bool = field(
        default=True,
        metadata={"help": "whether the pass over the clean batch updates BatchNorm's running statistics"},
    )


@dataclass(frozen=True, kw_only=True)
class SoftLabels:
    """What makes the soft labels of one batch.

    phi        φ, the tensors that are learned
    log_y_hat  gives log ŷ for φ as it is, with a graph to φ
    descend    takes a step against a gradient by φ
    """

    phi: Sequence[Tensor]
    log_y_hat: Callable[[], Tensor]
    descend: Callable[[Iterable[Tensor]], None]


class Iteration:
    """The three steps on one batch: φ learns through a look-ahead of the classifier, and the classifier from ŷ.

    clean_weight  γ: in step 3 θ follows the clean batch too, against γ times the gradient g = ∇θ̂ L_meta(θ̂) that
                  step 2 has computed. 0 is Algorithm 1.

    A call may bring a loss of its own for step 3, of θ, the logits f_θ(x) and log ŷ, in place of L_c + L_e.
    """

    def __init__(self, f: nn.Module, *, sgd: Optimizer, settings: Phase2Settings, clean_weight: float = 0.0) -> None:
        self.f, self.sgd, self.settings, self.clean_weight = f, sgd, settings, clean_weight
        self.meta_gradient = MetaGradient(settings.differentiation)

    def __call__(
        self, x: Tensor, labels: SoftLabels, x_m: Tensor, y_m: Tensor, *, seed: int, soft_loss: SoftLoss | None = None
    ) -> Tensor:
        """One iteration: updates φ, then θ. Gives the loss of step 3."""
        f, s = self.f, self.settings
        theta, products = trainable(f), Products()
        g: Theta = {}

        def f_x_at(weights: Theta, *, first: bool = False) -> Tensor:
            return forward(f, x, weights, seed=seed, update_statistics=first, products=products)

        def l_meta(weights: Theta) -> Tensor:
            logits = forward(f, x_m, weights, seed=seed + 1, update_statistics=s.clean_updates_statistics)
            return cross_entropy(logits, y_m).mean()

        # Iteration step 1: soft labels for the batch
        log_y_hat = labels.log_y_hat()
        f_x = f_x_at(theta, first=True)

        # Iteration step 2: θ̂ = θ − α ∇θ L_c(f_θ(x), ŷ), and φ goes against ∇φ L_meta(f_θ̂(x_m), y_m)
        by_phi = self.meta_gradient(
            theta=theta,
            phi=labels.phi,
            logits=f_x,
            logits_at=f_x_at,
            training_loss=lambda logits: self.l_c(logits, log_y_hat),
            meta_loss=l_meta,
            inner_step=s.inner_step,
            keep_g=g,
        )
        labels.descend(by_phi)

        # Iteration step 3: new soft labels, and θ goes against ∇θ (L_c + L_e) + γ g
        log_y_hat = labels.log_y_hat().detach()
        loss = self.l_c_and_l_e(f_x, log_y_hat) if soft_loss is None else soft_loss(theta, f_x, log_y_hat)
        by_theta = gradients(loss, theta)
        if self.clean_weight:
            by_theta = {name: by_theta[name] + self.clean_weight * g[name] for name in by_theta}
        descend(self.sgd, theta.values(), by_theta.values())
        return loss.detach()

    def l_c(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """L_c, which takes the look-ahead step."""
        return scale_factor(self.settings.loss_scale, logits) * classification_loss(logits, log_y_hat).mean()

    def l_c_and_l_e(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """L_c + L_e, the loss of step 3 in Algorithm 1."""
        s = self.settings
        l_e = scale_factor(s.loss_scale, logits) * entropy_loss(logits).mean()
        return self.l_c(logits, log_y_hat) + s.entropy_weight * l_e


class Phase2(Iteration):
    """Phase 2 of MetaLabelNet, called once per batch: ŷ = m_φ(g(x)), and φ goes by Adam.

    A step may bring what else is known of each class: then log ŷ is the label net's plus that evidence, normalised.
    """

    def __init__(
        self,
        f: nn.Module,
        g: nn.Module,
        m: nn.Module,
        *,
        sgd: Optimizer,
        adam: Optimizer,
        settings: Phase2Settings,
        clean_weight: float = 0.0,
    ) -> None:
        super().__init__(f, sgd=sgd, settings=settings, clean_weight=clean_weight)
        self.g, self.m, self.adam = g, m, adam

    def step(
        self,
        x: Tensor,
        x_m: Tensor,
        y_m: Tensor,
        *,
        seed: int,
        v: Tensor | None = None,
        evidence: Tensor | None = None,
        soft_loss: SoftLoss | None = None,
    ) -> Tensor:
        """One iteration with the soft labels of the label net, which reads g(x) if v is not there already."""
        v, phi = self.g(x) if v is None else v, list(self.m.parameters())
        first = iter((True,))  # step 1 comes first, and alone updates the statistics

        def log_y_hat() -> Tensor:
            generated = generate(self.m, v, seed=seed + 2, update_statistics=next(first, False))
            return generated if evidence is None else functional.log_softmax(generated + evidence, dim=1)

        labels = SoftLabels(phi=phi, log_y_hat=log_y_hat, descend=lambda by_phi: descend(self.adam, phi, by_phi))
        return self(x, labels, x_m, y_m, seed=seed, soft_loss=soft_loss)


def descend(optimizer: Optimizer, weights: Iterable[Tensor], by_weight: Iterable[Tensor]) -> None:
    """Let the optimizer take one step against these gradients."""
    for weight, gradient in zip(weights, by_weight, strict=True):
        weight.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
