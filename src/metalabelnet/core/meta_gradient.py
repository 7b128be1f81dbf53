"""The meta-gradient: how the clean loss after a look-ahead step depends on what generates the labels.

    θ̂ = θ − α ∇θ L(f_θ(x), φ)        the look-ahead
    g = ∇θ̂ L_meta(θ̂)                 the meta gradient
    ∂L_meta/∂φ = −α ∂/∂φ ⟨g, ∇θ L⟩

Three engines give the same answer:

`exact`              ⟨g, ∇θ L⟩ is the derivative of L along g, and L sees θ only through the logits z:
                     ⟨g, ∇θ L⟩ = ⟨∂L/∂z, ż⟩ with ż = J_θ z · g, one forward-mode pass. What is left to
                     differentiate by φ is a function of a few numbers per sample. For the paper's KL loss
                     and soft labels ŷ = softmax(s) it comes to ∂L_meta/∂s = (α/N) ṗ: the soft labels move
                     to where the predictions on the training batch would go if the classifier took a step
                     on the clean data.
`finite-difference`  ż from two more passes, at θ ± εg with ε = 0.01/‖g‖. Approximate.
`double-backward`    differentiates through the look-ahead as written above. Slow; the oracle of the tests.

Here φ makes the labels or weights of the training batch. Where θ itself is what is learned through the
look-ahead, see `hvp`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from metalabelnet.core.forward_ad_cache import load_forward_mode, make_dual, unpack_dual
from metalabelnet.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.autograd.graph import Node

    from metalabelnet.core.forward_pass import Theta

Differentiation = Literal["exact", "double-backward", "finite-difference"]
DIFFERENTIATIONS: tuple[Differentiation, ...] = get_args(Differentiation)  # in the order they are fallen back on


class EngineWarning(UserWarning):
    """The engine asked for cannot differentiate this network, and another is used."""


class EngineChoice:
    """An engine, and what takes its place.

    An operator may lack the derivative an engine needs. `exact` then gives way to `double-backward`, and that
    to `finite-difference`, which needs nothing but first derivatives; this is said once, and lasts.
    """

    def __init__(self, differentiation: Differentiation = "exact") -> None:
        if differentiation not in DIFFERENTIATIONS:
            raise unknown("differentiation", differentiation, DIFFERENTIATIONS)
        self.differentiation: Differentiation = differentiation
        if differentiation == "exact":
            load_forward_mode()

    def fall_back(self, error: Exception) -> None:
        """Change to the next engine, if the error says that a derivative is missing and there is a next one."""
        asked, *rest = DIFFERENTIATIONS[DIFFERENTIATIONS.index(self.differentiation) :]
        if not rest or not any(sign in str(error) for sign in _NO_DERIVATIVE):
            raise error
        self.differentiation = rest[0]
        reason = str(error).splitlines()[0]
        text = f"the engine {asked} cannot differentiate this network ({reason}): using {self.differentiation} instead"
        warnings.warn(text, EngineWarning, stacklevel=3)


# How PyTorch says that a derivative is missing: of an operator, or of somebody's autograd.Function.
_NO_DERIVATIVE = ("forward AD", "forward mode AD", "is not implemented", "once_differentiable")


class MetaGradient(EngineChoice):
    """∂L_meta/∂φ by one of three engines."""

    def __call__(
        self,
        *,
        theta: Theta,
        phi: Sequence[Tensor],
        logits: Tensor,
        logits_at: Callable[[Theta], Tensor],
        training_loss: Callable[[Tensor], Tensor],
        meta_loss: Callable[[Theta], Tensor],
        inner_step: float | Tensor,
        keep_g: Theta | None = None,
    ) -> tuple[Tensor, ...]:
        """The gradient of the meta loss by each tensor of φ.

        logits         z = f_θ(x), already computed, its graph kept for whoever needs it later
        logits_at      θ' ↦ f_θ'(x): the same batch, the same dropout mask, no statistics updated
        training_loss  z ↦ L(z, φ), a scalar with a graph to φ
        meta_loss      θ̂ ↦ L_meta(θ̂), a scalar; called once
        keep_g         filled with g, for whoever has a use for it too
        """
        weights = list(theta.values())
        loss = training_loss(logits)
        twice = self.differentiation == "double-backward"
        gradient = torch.autograd.grad(loss, weights, retain_graph=True, create_graph=twice, allow_unused=True)
        theta_hat = look_ahead(theta, gradient, inner_step)
        gradient = gradient if twice else ()
        g = gradients(meta_loss(theta_hat), theta_hat)
        del theta_hat
        if keep_g is not None:
            keep_g.update(g)

        while True:
            try:
                if self.differentiation == "exact":
                    return _mixed(training_loss, logits, _jvp(logits_at, theta, g), phi, inner_step)
                if self.differentiation == "double-backward":
                    if not twice:
                        gradient = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
                    return through(gradient, {name: -inner_step * d for name, d in g.items()}, phi)
                return _mixed(training_loss, logits, _difference(logits_at, theta, g), phi, inner_step)
            except (NotImplementedError, RuntimeError) as error:
                self.fall_back(error)


def look_ahead(theta: Theta, gradient: Sequence[Tensor | None], step: float | Tensor) -> Theta:
    """θ̂ = θ − α ∇θ L, as new leaves. A weight the loss does not see stays where it is."""
    seen = [name for name, d in zip(theta, gradient, strict=True) if d is not None]
    with torch.no_grad():
        steps = torch._foreach_mul([d for d in gradient if d is not None], step)  # noqa: SLF001 (as torch.optim does)
        there = torch._foreach_sub([theta[name] for name in seen], steps)  # noqa: SLF001
    moved = dict(zip(seen, there, strict=True))
    return {
        name: (moved[name] if name in moved else weight.detach().clone()).requires_grad_()
        for name, weight in theta.items()
    }


def gradients(loss: Tensor, theta: Theta) -> Theta:
    """∇θ of a loss, zero where it does not see the weight."""
    gradient = torch.autograd.grad(loss, list(theta.values()), allow_unused=True)
    return {
        name: torch.zeros_like(weight) if d is None else d
        for (name, weight), d in zip(theta.items(), gradient, strict=True)
    }


def _mixed(
    training_loss: Callable[[Tensor], Tensor],
    logits: Tensor,
    tangent: Tensor,
    phi: Sequence[Tensor],
    step: float | Tensor,
) -> tuple[Tensor, ...]:
    """−α ∂/∂φ ⟨∂L/∂z, ż⟩, with z and ż constant."""
    z = logits.detach().requires_grad_()
    (by_logits,) = torch.autograd.grad(training_loss(z), z, create_graph=True)
    return torch.autograd.grad(-step * (by_logits * tangent).sum(), phi)


def _jvp(logits_at: Callable[[Theta], Tensor], theta: Theta, g: Theta) -> Tensor:
    """ż = J_θ z · g by forward mode. Needs no backward graph, and keeps none."""
    with torch.no_grad(), forward_ad.dual_level():
        dual = {name: make_dual(weight.detach(), g[name]) for name, weight in theta.items()}
        tangent: Tensor | None = unpack_dual(logits_at(dual)).tangent
    if tangent is None:
        raise NotImplementedError("the logits carry no tangent: an operator in between has no forward AD")
    return tangent


def _difference(logits_at: Callable[[Theta], Tensor], theta: Theta, g: Theta) -> Tensor:
    """ż ≈ (z(θ + εg) − z(θ − εg)) / 2ε."""
    with torch.no_grad():
        epsilon = step_along(g)
        ahead, behind = (logits_at(shifted(theta, g, by)) for by in (epsilon, -epsilon))
        return (ahead - behind) / (2 * epsilon)


def step_along(g: Theta) -> Tensor:
    """ε = 0.01/‖g‖: a finite difference moves θ by 0.01 in all, however long g is."""
    norm = torch.stack([d.square().sum() for d in g.values()]).sum().sqrt()
    return 0.01 / norm.clamp_min(torch.finfo(norm.dtype).tiny)


def shifted(theta: Theta, g: Theta, by: Tensor) -> Theta:
    """θ + εg."""
    return {name: weight + by * g[name] for name, weight in theta.items()}


def through(
    gradient: Sequence[Tensor | None], along: Theta, phi: Sequence[Tensor], *, zero_where_unseen: bool = False
) -> tuple[Tensor, ...]:
    """∂/∂φ ⟨along, ∇θ L⟩ by the graph of ∇θ L."""
    pairs = zip(gradient, along.values(), strict=True)
    reached = [(d, cotangent) for d, cotangent in pairs if d is not None and d.requires_grad]
    outputs, cotangents = zip(*reached, strict=True)
    if any(node.name().endswith("::Error") for node in _graph(outputs)):
        raise NotImplementedError("a function in it is marked once_differentiable")
    return torch.autograd.grad(
        outputs, phi, grad_outputs=cotangents, retain_graph=True, materialize_grads=zero_where_unseen
    )


def _graph(outputs: Iterable[Tensor]) -> set[Node]:
    """All nodes of the autograd graph behind these tensors.

    A function that can be differentiated but once ends the graph with a node that raises an error when it
    is reached. `autograd.grad` does not go there, because φ cannot be behind it, and leaves the share of all
    weights before that function out without a word.
    """
    nodes: set[Node] = set()
    open_ends = [output.grad_fn for output in outputs]
    while open_ends:
        node = open_ends.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            open_ends.extend(after for after, _ in node.next_functions)
    return nodes
