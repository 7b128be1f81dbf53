"""The look-ahead of methods that weight samples: the gradient of the clean loss with respect to the weights' source.

θ̂ ← θ − α ∇θ L(f_θ(x), φ)
∂L_meta(f_θ̂(x_m), y_m)/∂φ

x         a training batch
x_m, y_m  a batch of the clean set
f, θ      the classifier and its weights
φ         what determines the weights of the training samples
L         the weighted loss of the training batch
L_meta    mean cross-entropy on the clean batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.core.forward_ad_cache import ForwardADCache
from metalabelnet.core.forward_pass import Theta, forward
from metalabelnet.core.losses import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from metalabelnet.core.meta_gradient import MetaGradient
    from metalabelnet.data.batches import Batch


def batch_meta_gradient(
    meta_gradient: MetaGradient,
    net: nn.Module,
    theta: Theta,
    batch: Batch,
    *,
    phi: Sequence[Tensor],
    training_loss: Callable[[Tensor], Tensor],
    inner_step: float | Tensor,
    clean_updates_statistics: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return f_θ(x) with its graph, and ∂L_meta/∂φ for each tensor of φ.

    The pass over x updates BatchNorm's running statistics; that over x_m only with `clean_updates_statistics`.
    """
    cache = ForwardADCache()

    def logits_at(weights: Theta, *, first: bool = False) -> Tensor:
        return forward(net, batch.x, weights, seed=batch.seed, update_statistics=first, cache=cache)

    def l_meta(weights: Theta) -> Tensor:
        logits = forward(net, batch.clean_x, weights, seed=batch.seed + 1, update_statistics=clean_updates_statistics)
        return cross_entropy(logits, batch.clean_y).mean()

    logits = logits_at(theta, first=True)
    by_phi = meta_gradient(
        theta=theta,
        phi=phi,
        logits=logits,
        logits_at=logits_at,
        training_loss=training_loss,
        meta_loss=l_meta,
        inner_step=inner_step,
    )
    return logits, by_phi
