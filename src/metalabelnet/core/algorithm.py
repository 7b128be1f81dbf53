"""Algorithm 1 of MetaLabelNet, phase 2: one iteration on one batch.

    x         a batch of training samples; their given labels are not used
    x_m, y_m  a batch of clean samples and their labels
    f, θ      the classifier and its weights, trained by SGD with learning rate λ
    g         the feature extractor: the classifier at the end of warm-up, without its last layer
    m, φ      the label net and its weights, trained by Adam with learning rate β
    v, ŷ      features and soft labels of x
    α         the length of the inner step

Mode of each pass (f is in train mode, g in eval mode):

    pass                        weights  BatchNorm uses    running statistics  dropout mask
    g(x)                        fixed    those of warm-up  unchanged           none
    f(x), for steps 1 and 3     θ        the batch's       updated             first
    f(x), for the meta-gradient θ ± g    the batch's       unchanged           first
    f(x_m)                      θ̂        the batch's       updated (option)    second
    m(v) in step 1              φ        the batch's       updated             third
    m(v) in step 3              new φ    the batch's       unchanged           third

(The paper's label net is one linear layer, without BatchNorm and dropout.)

The authors' code updates the running statistics in the pass over x_m too. This is the default here;
`clean_updates_statistics=False` restricts the updates to the training batches.

Where several ranks train together (`metalabelnet.core.ranks`), each passes its share of x and x_m, and all of them have
features and logits of the whole batches afterwards. What is sent, besides BatchNorm's statistics:

    all-gather  v = g(x), f_θ(x), f_θ̂(x_m), and the tangent of f_θ(x)
    all-reduce  the look-ahead gradient ∇θ L_c, the gradient of L_meta at θ̂, and the gradient of step 3

Soft labels, the gradient of φ and both optimizers are computed on every rank, from equal values.

Soft labels come from a label net (`Phase2`), or from a table with one row per sample, where φ are the label logits of
the batch.

References
----------
.. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
   https://arxiv.org/abs/2103.10869
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from metalabelnet.core.forward_ad_cache import ForwardADCache
from metalabelnet.core.forward_pass import Theta, forward, label_net_forward, trainable_parameters
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
    """Settings of phase 2. The defaults are the paper's values.

    Parameters
    ----------
    inner_step : float, default 1.0
        α, the length of the look-ahead step.
    entropy_weight : float, default 1.0
        Weight of the entropy loss L_e in step 3.
    loss_scale : {"per-class-mean", "sum"}, default "per-class-mean"
        Whether L_c and L_e average over classes (the authors' code) or sum over them (the paper's equations).
    differentiation : {"exact", "double-backward", "finite-difference"}, default "exact"
        How the meta-gradient is computed, see `metalabelnet.core.meta_gradient`.
    clean_updates_statistics : bool, default True
        Whether the pass over the clean batch updates BatchNorm's running statistics.
    """

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
class SoftLabelSource:
    """The source of the soft labels of one batch.

    Parameters
    ----------
    phi : sequence of Tensor
        φ, the tensors to learn.
    log_y_hat : callable
        Returns log ŷ for the current φ, with a graph to φ.
    update : callable
        Takes the gradients with respect to φ, one per tensor, and updates φ.
    """

    phi: Sequence[Tensor]
    log_y_hat: Callable[[], Tensor]
    update: Callable[[Iterable[Tensor]], None]


class Iteration:
    """The three steps of Algorithm 1 on one batch: a look-ahead of the classifier trains φ; ŷ trains the classifier.

    Parameters
    ----------
    f : nn.Module
        The classifier, in train mode.
    sgd : Optimizer
        The optimizer of θ.
    settings : Phase2Settings
    """

    def __init__(self, f: nn.Module, *, sgd: Optimizer, settings: Phase2Settings) -> None:
        self.f, self.sgd, self.settings = f, sgd, settings
        self.meta_gradient = MetaGradient(settings.differentiation)

    def __call__(
        self,
        x: Tensor,
        labels: SoftLabelSource,
        x_m: Tensor,
        y_m: Tensor,
        *,
        seed: int,
        soft_loss: SoftLoss | None = None,
    ) -> Tensor:
        """Run one iteration, which updates φ, then θ, and return the loss of step 3.

        Parameters
        ----------
        x : Tensor of shape (N, ...)
            A batch of training samples.
        labels : SoftLabelSource
            Their soft labels.
        x_m : Tensor of shape (M, ...)
            A batch of clean samples.
        y_m : Tensor of shape (M,)
            Their labels.
        seed : int
            Determines the dropout masks.
        soft_loss : callable, optional
            Loss of step 3 in place of L_c + L_e: a function of θ, the logits f_θ(x) and log ŷ.

        Returns
        -------
        Tensor
            The loss of step 3, a scalar without a graph.
        """
        f, s = self.f, self.settings
        theta, cache = trainable_parameters(f), ForwardADCache()

        def f_x_at(weights: Theta, *, first: bool = False) -> Tensor:
            return forward(f, x, weights, seed=seed, update_statistics=first, cache=cache)

        def l_meta(weights: Theta) -> Tensor:
            logits = forward(f, x_m, weights, seed=seed + 1, update_statistics=s.clean_updates_statistics)
            return cross_entropy(logits, y_m).mean()

        # Iteration step 1: soft labels for the batch
        log_y_hat = labels.log_y_hat()
        f_x = f_x_at(theta, first=True)

        # Iteration step 2: θ̂ = θ − α ∇θ L_c(f_θ(x), ŷ); update φ with ∇φ L_meta(f_θ̂(x_m), y_m)
        grad_phi = self.meta_gradient(
            theta=theta,
            phi=labels.phi,
            logits=f_x,
            logits_at=f_x_at,
            training_loss=lambda logits: self.l_c(logits, log_y_hat),
            meta_loss=l_meta,
            inner_step=s.inner_step,
        )
        labels.update(grad_phi)

        # Iteration step 3: new soft labels; update θ with ∇θ (L_c + L_e)
        log_y_hat = labels.log_y_hat().detach()
        loss = self.l_c_and_l_e(f_x, log_y_hat) if soft_loss is None else soft_loss(theta, f_x, log_y_hat)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def l_c(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """Return L_c, the loss of the look-ahead step."""
        return scale_factor(self.settings.loss_scale, logits) * classification_loss(logits, log_y_hat).mean()

    def l_c_and_l_e(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """Return L_c + L_e, the loss of step 3 in Algorithm 1."""
        s = self.settings
        l_e = scale_factor(s.loss_scale, logits) * entropy_loss(logits).mean()
        return self.l_c(logits, log_y_hat) + s.entropy_weight * l_e


class Phase2(Iteration):
    """Phase 2 of MetaLabelNet: ŷ = m_φ(g(x)), with φ trained by Adam.

    Parameters
    ----------
    f : nn.Module
        The classifier, in train mode.
    g : nn.Module
        The feature extractor.
    m : nn.Module
        The label net: features ↦ log ŷ.
    sgd : Optimizer
        The optimizer of θ.
    adam : Optimizer
        The optimizer of φ.
    settings : Phase2Settings

    References
    ----------
    .. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
       https://arxiv.org/abs/2103.10869

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.algorithm import Phase2, Phase2Settings
    >>> from metalabelnet.core.label_net import LabelNet
    >>> from metalabelnet.core.optimizers import SGD, Adam
    >>> from metalabelnet.nets import build
    >>> from metalabelnet.nets.head import FeatureExtractor, find_head
    >>> x, x_m, y_m = torch.randn(8, 5), torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> f = build("mlp", (5,), 3, seed=0)
    >>> g = FeatureExtractor(f, find_head(f, x, 3))
    >>> m = LabelNet(g.width, 3, torch.Generator().manual_seed(0))
    >>> sgd = SGD(f.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    >>> adam = Adam(m.parameters(), lr=1e-3, weight_decay=1e-4)
    >>> phase2 = Phase2(f, g, m, sgd=sgd, adam=adam, settings=Phase2Settings())
    >>> loss = phase2.step(x, x_m, y_m, seed=0)
    >>> loss.ndim
    0
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
    ) -> None:
        super().__init__(f, sgd=sgd, settings=settings)
        self.g, self.m, self.adam = g, m, adam

    def step(
        self,
        x: Tensor,
        x_m: Tensor,
        y_m: Tensor,
        *,
        seed: int,
        soft_loss: SoftLoss | None = None,
    ) -> Tensor:
        """Run one iteration with the soft labels of the label net, and return the loss of step 3.

        Parameters
        ----------
        x : Tensor of shape (N, ...)
            A batch of training samples.
        x_m : Tensor of shape (M, ...)
            A batch of clean samples.
        y_m : Tensor of shape (M,)
            Their labels.
        seed : int
            Determines the dropout masks.
        soft_loss : callable, optional
            See `Iteration`.

        Returns
        -------
        Tensor
            The loss of step 3, a scalar without a graph.
        """
        v, phi = self.g(x), list(self.m.parameters())
        first = iter((True,))  # only step 1 updates the running statistics

        def log_y_hat() -> Tensor:
            return label_net_forward(self.m, v, seed=seed + 2, update_statistics=next(first, False))

        def update(grad_phi: Iterable[Tensor]) -> None:
            apply_gradients(self.adam, phi, grad_phi)

        labels = SoftLabelSource(phi=phi, log_y_hat=log_y_hat, update=update)
        return self(x, labels, x_m, y_m, seed=seed, soft_loss=soft_loss)


def apply_gradients(optimizer: Optimizer, weights: Iterable[Tensor], grads: Iterable[Tensor]) -> None:
    """Take one step of the optimizer with these gradients.

    Parameters
    ----------
    optimizer : Optimizer
    weights : iterable of Tensor
    grads : iterable of Tensor
        One per weight.
    """
    for weight, gradient in zip(weights, grads, strict=True):
        weight.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
