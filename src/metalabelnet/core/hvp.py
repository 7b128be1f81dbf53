"""The gradient through a look-ahead whose only variable is the classifier itself.

    θ' = θ − α ∇θ L(θ)                the look-ahead
    g = ∇θ' L_meta(θ')                the meta gradient
    ∇θ L_meta(θ') = (I − αH) g        with H the Hessian of L at θ

Nothing outside θ is learned, so the short cut of `metagrad` does not exist: Hg is a true second derivative.
It is a Hessian-vector product, and H itself is never formed. The engines and the order they give way in
are those of `metagrad`:

`exact`              forward over reverse: the gradient of L while θ has the tangent g.
`double-backward`    differentiates ⟨g, ∇θ L⟩ by the graph of ∇θ L.
`finite-difference`  from the gradients at θ ± εg with ε = 0.01/‖g‖. Approximate.

The first two agree to the last digits. Here, other than for labels, double backward is the better one: the forward
pass and ∇θ L are there already, while forward over reverse goes through both again with tangents, and dropout on CUDA
has no forward mode backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

from metalabelnet.core.forward_ad_cache import make_dual, unpack_dual
from metalabelnet.core.meta_gradient import (
    EngineChoice,
    gradients,
    look_ahead,
    shifted,
    step_along,
    through,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metalabelnet.core.forward_pass import Theta


class LookAheadGradient(EngineChoice):
    """∇θ L_meta(θ − α ∇θ L(θ)) by one of three engines."""

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
        """L_meta(θ') and its gradient by θ.

        logits         z = f_θ(x), already computed, its graph kept: several look-aheads share it
        logits_at      θ ↦ f_θ(x): the same batch, the same dropout mask, no statistics updated
        training_loss  z ↦ L(z), a scalar
        meta_loss      θ' ↦ L_meta(θ'), a scalar; called once
        """
        weights = list(theta.values())
        loss = training_loss(logits)
        twice = self.differentiation == "double-backward"
        gradient = torch.autograd.grad(loss, weights, retain_graph=True, create_graph=twice, allow_unused=True)
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
                    if not twice:
                        gradient = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
                    h_g = dict(zip(theta, through(gradient, g, weights, zero_where_unseen=True), strict=True))
                else:
                    h_g = _difference(gradient_at, theta, g)
                return meta.detach(), {name: g[name] - inner_step * h_g[name] for name in theta}
            except (NotImplementedError, RuntimeError) as error:
                self.fall_back(error)


def _forward_over_reverse(gradient_at: Callable[[Theta], Theta], theta: Theta, g: Theta) -> Theta:
    """Hg: the tangent of ∇θ L when θ has the tangent g."""
    with forward_ad.dual_level():
        dual = {name: make_dual(weight.detach().requires_grad_(), g[name]) for name, weight in theta.items()}
        tangents: dict[str, Tensor | None] = {name: unpack_dual(d).tangent for name, d in gradient_at(dual).items()}
    if all(tangent is None for tangent in tangents.values()):
        raise NotImplementedError("the gradient carries no tangent: an operator in between has no forward AD")
    return {name: torch.zeros_like(g[name]) if tangent is None else tangent for name, tangent in tangents.items()}


def _difference(gradient_at: Callable[[Theta], Theta], theta: Theta, g: Theta) -> Theta:
    """Hg ≈ (∇L(θ + εg) − ∇L(θ − εg)) / 2ε."""
    epsilon = step_along(g)
    leaves = {name: weight.detach().requires_grad_() for name, weight in theta.items()}
    ahead, behind = (gradient_at(shifted(leaves, g, by)) for by in (epsilon, -epsilon))
    return {name: (ahead[name] - behind[name]) / (2 * epsilon) for name in theta}
