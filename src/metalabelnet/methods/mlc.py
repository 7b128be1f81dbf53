"""MLC, Meta Label Correction (Zheng et al. 2021, https://arxiv.org/abs/1911.03809).

    ŷ ← g_φ(h(x), y)                                     corrected labels of the batch
    θ̂ ← θ − λ ∇θ L(θ, ŷ)                                 look-ahead
    φ ← φ − Adam(∇φ L_meta(f_θ̂(x_m), y_m))               meta-gradient, through θ̂
    ŷ ← g_φ(h(x), y)
    θ ← θ − SGD_λ(∇θ L(θ, ŷ))

    x, y      a training batch and its given labels
    x_m, y_m  half of a clean batch
    x_c, y_c  the other half, which is trained on (`train_on_clean`)
    f, θ      the classifier and its weights
    h         features of the classifier: the input of its last layer, without a gradient
    g, φ      the label correction network (`metalabelnet.core.label_corrector`) and its weights
    λ         the current learning rate of the classifier
    L         mean of the cross-entropies −Σ_j ŷ_j log p_j of x and −log p_y of x_c
    L_meta    mean cross-entropy of x_m

Unlike the label net of MetaLabelNet, g reads the given label beside the features.

Departures from the paper, and the authors' code:

-   The meta-gradient is that of one look-ahead step, the default of the code. The paper also has a variant that keeps a
    discounted sum over several steps, with the Hessian replaced by the identity.
-   The look-ahead is a plain gradient step, as in the paper. The code adds momentum and weight decay to it.
-   θ is trained with the labels of the updated g, as in the paper. The code uses those from before the update.
-   Half of each clean batch is trained on, as the code does by default; the paper does not state it.
-   Adam is used without AMSGrad, and the clean half x_m does not change BatchNorm's running statistics.

`--recipe own` has the schedule and settings that the authors' code documents for CIFAR-10, there with a ResNet-32 and
1,000 clean images. Rows without a given label are left out, because g reads it. What a recipe adds to the loss (MixUp,
strong augmentation) enters the last line only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_ad_cache import ForwardADCache
from metalabelnet.core.forward_pass import Theta, forward, trainable_parameters
from metalabelnet.core.label_corrector import LabelCorrector
from metalabelnet.core.losses import cross_entropy, soft_cross_entropy
from metalabelnet.core.meta_gradient import Differentiation, MetaGradient, gradients
from metalabelnet.core.optimizers import Adam
from metalabelnet.core.top_classes import collect, top_probabilities
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.head import collect_features, features_and_logits, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class MLCSettings:
    """Settings of the label correction network and its optimizer, with the authors' values for CIFAR-10."""

    embedding: int = field(default=128, metadata={"help": "size of the embedding of a given label"})
    hidden: int = field(default=128, metadata={"help": "units of each hidden layer of the label correction network"})
    corrector_lr: float = field(default=3e-4, metadata={"help": "learning rate of the label correction network (Adam)"})
    train_on_clean: bool = field(
        default=True, metadata={"help": "whether the classifier is trained on half of each clean batch"}
    )
    differentiation: Differentiation = field(default="exact", metadata={"help": "how the meta-gradient is computed"})

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} is out of range: give 1 or more")


class MLC(Method):
    """Train the classifier on labels that a network corrects, meta-learned to lower the loss on the clean set.

    Attributes
    ----------
    corrector, adam : LabelCorrector, Adam
        g and its optimizer.
    """

    traits = MethodTraits(
        summary="labels corrected by a net that reads features and given label, meta-learned on the clean set",
        reference="Zheng et al. 2021",
        paper_url="https://arxiv.org/abs/1911.03809",
        needs_clean=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=3.4,
        own_recipe={
            "epochs": 120,
            "lr": 0.1,
            "lr_milestones": (80, 100),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 100,
        },
    )
    Settings: ClassVar[type] = MLCSettings

    settings: MLCSettings

    def __init__(self, task: Task, settings: MLCSettings) -> None:
        super().__init__(task, settings)
        classes = len(task.train.classes)
        self.head = find_head(self.net, to_input(task.train.x[:2], task.dtype), classes, task.head)
        self.corrector = LabelCorrector(
            int(self.net.get_submodule(self.head).in_features),  # type: ignore[arg-type]
            classes,
            embedding=settings.embedding,
            hidden=settings.hidden,
            generator=generator(task.seed, "label corrector"),
        ).to(task.train.x.device, task.dtype)
        self.adam = Adam(self.corrector.parameters(), lr=settings.corrector_lr, weight_decay=0.0)
        self.meta_gradient = MetaGradient(settings.differentiation)
        self.clean_from = 0 if settings.train_on_clean else None

    def step(self, batch: Batch) -> Tensor:
        """Look ahead, update the label correction network, then the classifier."""
        net, g, theta, cache = self.net, self.corrector, trainable_parameters(self.net), ForwardADCache()
        phi, size = list(g.parameters()), len(batch.clean_x)
        meta = (size + 1) // 2 if self.settings.train_on_clean else size

        def logits_at(weights: Theta, *, first: bool = False) -> Tensor:
            return forward(net, batch.x, weights, seed=batch.seed, update_statistics=first, cache=cache)

        def l_meta(weights: Theta) -> Tensor:
            logits = forward(net, batch.clean_x[:meta], weights, seed=batch.seed + 1, update_statistics=False)
            return cross_entropy(logits, batch.clean_y[:meta]).mean()

        def l_train(logits: Tensor, log_y_hat: Tensor) -> Tensor:
            return torch.cat([soft_cross_entropy(logits, log_y_hat), clean_losses]).mean()

        with collect_features(net, self.head) as features:
            logits = logits_at(theta, first=True)
        v = features[0].detach().to(batch.x.dtype)
        clean_losses = logits.new_zeros(0)
        if meta < size:
            clean_logits = forward(net, batch.clean_x[meta:], theta, seed=batch.seed + 2, update_statistics=True)
            clean_losses = cross_entropy(clean_logits, batch.clean_y[meta:])
        gradient_phi = self.meta_gradient(
            theta=theta,
            phi=phi,
            logits=logits,
            logits_at=logits_at,
            training_loss=lambda z: l_train(z, g(v, batch.given)),
            meta_loss=l_meta,
            inner_step=self.sgd.lr,
        )
        apply_gradients(self.adam, phi, gradient_phi)
        targets = (g(v, batch.given).detach(),)
        loss = self.recipe_loss(net, theta, l_train, batch.views, targets, batch.seed, logits=logits)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    @torch.no_grad()
    def soft_labels(self) -> ClassTable:
        """Return the corrected labels of all training rows in eval mode; uniform without a given label."""
        return collect(self._soft_label_chunks(), len(self.task.train))

    def _soft_label_chunks(self) -> Iterator[ClassTable]:
        start = 0
        for x in chunks(self.task.train.x):
            v = features_and_logits(self.net, self.head, to_input(x, self.task.dtype))[0].to(self.task.dtype)
            given = self.task.train.given[start : start + len(v)]
            y_hat = self.corrector(v, given.clamp_min(0)).exp()
            y_hat = torch.where((given != UNLABELED)[:, None], y_hat, 1 / y_hat.shape[1])
            yield top_probabilities(y_hat, given)
            start += len(v)

    def components(self) -> dict[str, Stateful]:
        """Add the label correction network and its Adam."""
        return super().components() | {"corrector": self.corrector, "adam": self.adam}
