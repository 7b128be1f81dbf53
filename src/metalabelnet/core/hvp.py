"""Hessian-vector product: the gradient through a look-ahead step with respect to the classifier's own weights.

    θ' = θ − α ∇θ L(θ)                the look-ahead
    g = ∇θ' L_meta(θ')                the gradient of the meta loss at the look-ahead
    ∇θ L_meta(θ') = (I − αH) g        with H the Hessian of L at θ

The shortcut of `metalabelnet.core.meta_gradient` does not apply, because θ itself is differentiated: Hg is a second
derivative. It is a Hessian-vector product; H is never formed. The kinds of differentiation, and the order of fallback,
are those of `meta_gradient`:

`exact`              forward over reverse: the tangent of ∇θ L when θ has the tangent g.
`double-backward`    differentiates ⟨g, ∇θ L⟩ through the graph of ∇θ L.
`finite-difference`  from the gradients at θ ± εg with ε = 0.01/‖g‖. Approximate.

The first two agree to rounding error. Here double backward is faster: the forward pass and ∇θ L are already computed,
while forward over reverse repeats both with tangents. Also, dropout on CUDA does not support forward over reverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

from metalabelnet.core.forward_ad_cache import make_dual, unpack_dual
from metalabelnet.core.meta_gradient import (
    DifferentiationWithFallback,
    differentiate_gradient,
    finite_difference_step,
    gradients,
    look_ahead,
    shift,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metalabelnet.core.forward_pass import Theta


class LookAheadGradient(DifferentiationWithFallback):
    """Computes ∇θ L_meta(θ − α ∇θ L(θ)) with one of three kinds of differentiation."""

    def __call__(
        self,
        *,
        theta: Theta,
        logits: Tensor,
        logits_at: Callable[[Theta], Tensor],
        training_loss: Callable[[Tensor], Tensor],
        meta_loss: Callable[[Theta], Tensor],
        inner_step: float,
    ) -> tuple[Tensor, Theta]:
        """Return L_meta(θ') and its gradient with respect to θ.

        logits         z = f_θ(x); its graph is kept, because several look-aheads share it
        logits_at      θ ↦ f_θ(x) for the same batch and dropout mask, without updates of running statistics
        training_loss  z ↦ L(z), a scalar
        meta_loss      θ' ↦ L_meta(θ'), a scalar; called once
        """
        weights = list(theta.values())
        loss = training_loss(logits)
        create_graph = self.differentiation == "double-backward"
        gradient = torch.autograd.grad(loss, weights, retain_graph=True, create_graph=create_graph, allow_unused=True)
        ahead = look_ahead(theta, gradient, inner_step)
        meta = meta_loss(ahead)
        g = gradients(meta, ahead)

        def gradient_at(at: Theta) -> Theta:
            return gradients(training_loss(logits_at(at)), at)

        while True:
            try:
                if self.differentiation == "exact":
                    h_g = _forward_over_reverse(gradient_at, theta, g)
                elif self.differentiation == "double-backward":
                    if not create_graph:
                        gradient = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
                    h_g = dict(
                        zip(theta, differentiate_gradient(gradient, g, weights, zero_if_unused=True), strict=True)
                    )
                else:
                    h_g = _finite_difference_hvp(gradient_at, theta, g)
                return meta.detach(), {name: g[name] - inner_step * h_g[name] for name in theta}
            except (NotImplementedError, RuntimeError) as error:
                self.fall_back(error)


def _forward_over_reverse(gradient_at: Callable[[Theta], Theta], theta: Theta, g: Theta) -> Theta:
    """Return Hg: the tangent of ∇θ L when θ has the tangent g."""
    with forward_ad.dual_level():
        dual = {name: make_dual(weight.detach().requires_grad_(), g[name]) for name, weight in theta.items()}
        tangents: dict[str, Tensor | None] = {name: unpack_dual(d).tangent for name, d in gradient_at(dual).items()}
    if all(tangent is None for tangent in tangents.values()):
        raise NotImplementedError("the gradient has no tangent: an operator of the network does not support forward AD")
    return {name: torch.zeros_like(g[name]) if tangent is None else tangent for name, tangent in tangents.items()}


def _finite_difference_hvp(gradient_at: Callable[[Theta], Theta], theta: Theta, g: Theta) -> Theta:
    """Return Hg ≈ (∇L(θ + εg) − ∇L(θ − εg)) / 2ε."""
    epsilon = finite_difference_step(g)
    leaves = {name: weight.detach().requires_grad_() for name, weight in theta.items()}
    ahead, behind = (gradient_at(shift(leaves, g, by)) for by in (epsilon, -epsilon))
    return {name: (ahead[name] - behind[name]) / (2 * epsilon) for name in theta}
