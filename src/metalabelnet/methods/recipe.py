"""The recipe: how a network is trained, apart from what a method does with labels. Every method takes all of it.

The loss of one network on a batch, for a method whose own loss is L(logits, targets):

    no MixUp         L(f(x), y)
    MixUp            λ L(f(x'), y) + (1 − λ) L(f(x'), y_π),    x' = λ x + (1 − λ) x_π
    label smoothing  L becomes (1 − ε) L + ε L_u;  for cross-entropy this is label smoothing (Szegedy et al. 2016)
    strong augmentation, supervised    + w L(f(x_s), y)
    strong augmentation, consistency   + w CE(f(x_s), f(x)),    no gradient through f(x)

    x, x_s   the samples with weak and with strong augmentation
    y        what the method trains on: given labels, soft labels, labels and sample weights
    L_u      cross-entropy with the uniform distribution

The learning rate falls at milestones or by cosine annealing, and may rise linearly over the first epochs. An EMA of the
weights predicts, and the epoch is selected from a window at the end of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.core.forward_pass import forward
from metalabelnet.core.losses import soft_cross_entropy, uniform_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from metalabelnet.core.forward_pass import Theta
    from metalabelnet.data.batches import Views

    LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Length of the training, optimizer, augmentation losses and selection. The defaults turn every ingredient off.

    Attributes
    ----------
    epochs : int
        Number of epochs.
    warmup : int
        Number of epochs of warm-up on the given labels, for methods that have one (`MethodTraits.has_warmup`).
    lr : float
        Initial learning rate λ.
    lr_schedule : {"milestones", "cosine"}
        How the learning rate falls.
    lr_milestones : tuple of int
        Epochs at which the learning rate is divided by 10; not used by cosine annealing.
    lr_warmup : int
        Number of epochs over which the learning rate rises linearly.
    momentum, weight_decay : float
        Of SGD.
    ema : float
        Maximum decay of the EMA of the weights that predicts; 0: none.
    strong_augment : {"none", "supervised", "consistency"}
        Loss on strongly augmented images.
    strong_weight : float
        Weight w of that loss.
    mixup : float
        α of MixUp's distribution Beta(α, α); 0: no MixUp.
    label_smoothing : float
        ε.
    select_from : float
        Fraction of the epochs after which an epoch may be selected as the result.

    Examples
    --------
    >>> from metalabelnet.methods.recipe import Recipe
    >>> recipe = Recipe(
    ...     epochs=120, warmup=44, lr=0.01, lr_milestones=(40, 80), momentum=0.9, weight_decay=1e-4
    ... )
    >>> [round(recipe.lr_at(epoch), 6) for epoch in (0, 39, 40, 80)]
    [0.01, 0.01, 0.001, 0.0001]
    """

    epochs: int
    warmup: int
    lr: float
    lr_milestones: tuple[int, ...]
    momentum: float
    weight_decay: float
    lr_schedule: str = "milestones"
    lr_warmup: int = 0
    ema: float = 0.0
    strong_augment: str = "none"
    strong_weight: float = 1.0
    mixup: float = 0.0
    label_smoothing: float = 0.0
    select_from: float = 0.0

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate λ of an epoch. Epochs count from 0."""
        ramp = min(1.0, (epoch + 1) / (self.lr_warmup + 1))
        if self.lr_schedule == "cosine":
            return ramp * self.lr * (1 + math.cos(math.pi * min(epoch / self.epochs, 1.0))) / 2
        return ramp * self.lr * float(0.1 ** sum(epoch >= milestone for milestone in self.lr_milestones))

    def loss(
        self,
        net: nn.Module,
        theta: Theta,
        loss_of: LossFunction,
        views: Views,
        targets: tuple[Tensor, ...],
        *,
        seed: int,
        logits: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a network on a batch.

        Parameters
        ----------
        net : nn.Module
            The network, in train mode.
        theta : dict
            Its weights.
        loss_of : callable
            The method's loss: ``loss_of(logits, *targets)`` returns a scalar.
        views : Views
            The samples.
        targets : tuple of Tensor
            What the method trains on; the first dimension of each counts the samples.
        seed : int
            Seed of the dropout masks.
        logits : Tensor, optional
            The logits of ``views.weak``, if they are computed already.
        """

        def smoothed_loss(z: Tensor, *y: Tensor) -> Tensor:
            epsilon = self.label_smoothing
            loss = loss_of(z, *y)
            return (1 - epsilon) * loss + epsilon * uniform_cross_entropy(z).mean() if epsilon else loss

        if views.partner is None or views.share is None:
            if logits is None:
                logits = forward(net, views.weak, theta, seed=seed, update_statistics=True)
            loss = smoothed_loss(logits, *targets)
        else:
            share, partner = views.share, views.partner
            mixed = share * views.weak + (1 - share) * views.weak[partner]
            z = forward(net, mixed, theta, seed=seed + 4, update_statistics=logits is None)
            loss = share * smoothed_loss(z, *targets) + (1 - share) * smoothed_loss(z, *(y[partner] for y in targets))
        if views.strong is None or self.strong_augment == "none":
            return loss
        strong_logits = forward(net, views.strong, theta, seed=seed + 3, update_statistics=False)
        if self.strong_augment == "supervised":
            return loss + self.strong_weight * smoothed_loss(strong_logits, *targets)
        if logits is None:
            logits = forward(net, views.weak, theta, seed=seed, update_statistics=False)
        consistency = soft_cross_entropy(strong_logits, logits.detach().log_softmax(1)).mean()
        return loss + self.strong_weight * consistency
