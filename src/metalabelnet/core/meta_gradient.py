"""The meta-gradient: the gradient of the clean loss after a look-ahead step, with respect to φ.

    θ̂ = θ − α ∇θ L(f_θ(x), φ)        the look-ahead
    g = ∇θ̂ L_meta(θ̂)                 the gradient of the meta loss at the look-ahead
    ∂L_meta/∂φ = −α ∂/∂φ ⟨g, ∇θ L⟩

φ determines the labels or the weights of the training batch. Three kinds of differentiation compute the same quantity:

`exact`              ⟨g, ∇θ L⟩ is the derivative of L along g, and L depends on θ only through the logits z:
                     ⟨g, ∇θ L⟩ = ⟨∂L/∂z, ż⟩ with ż = J_θ z · g, one forward-mode pass. What remains to be
                     differentiated with respect to φ is a function of a few numbers per sample. For the paper's KL
                     loss and soft labels ŷ = softmax(s) the result is ∂L_meta/∂s = (α/N) ṗ: the soft labels move
                     toward the predictions that the classifier would make after a step on the clean data.
`finite-difference`  ż from two more passes, at θ ± εg with ε = 0.01/‖g‖. Approximate.
`double-backward`    differentiates through the look-ahead as written above. Slow; the tests use it as the reference.

Where θ itself is what the look-ahead trains, see `metalabelnet.core.hvp`.

References
----------
.. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
   https://arxiv.org/abs/2103.10869
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from metalabelnet.core.forward_ad_cache import make_dual, preload_forward_ad, unpack_dual
from metalabelnet.errors import unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.autograd.graph import Node

    from metalabelnet.core.forward_pass import Theta

Differentiation = Literal["exact", "double-backward", "finite-difference"]
DIFFERENTIATIONS: tuple[Differentiation, ...] = get_args(Differentiation)  # in the order of fallback


class DifferentiationWarning(UserWarning):
    """The chosen differentiation does not support this network; the next one is used."""


class DifferentiationWithFallback:
    """A kind of differentiation that is replaced when an operator lacks the derivative it needs.

    `exact` is replaced by `double-backward`, and that by `finite-difference`, which needs only first derivatives. The
    replacement is permanent and raises one `DifferentiationWarning`.

    Parameters
    ----------
    differentiation : {"exact", "double-backward", "finite-difference"}, default "exact"

    Raises
    ------
    InputError
        If there is no such differentiation.
    """

    def __init__(self, differentiation: Differentiation = "exact") -> None:
        if differentiation not in DIFFERENTIATIONS:
            raise unknown_name_error("differentiation", differentiation, DIFFERENTIATIONS)
        self.differentiation: Differentiation = differentiation
        if differentiation == "exact":
            preload_forward_ad()

    def fall_back(self, error: Exception) -> None:
        """Switch to the next differentiation if the error reports a missing derivative; otherwise raise the error."""
        current, *rest = DIFFERENTIATIONS[DIFFERENTIATIONS.index(self.differentiation) :]
        if not rest or not any(sign in str(error) for sign in _MISSING_DERIVATIVE_MESSAGES):
            raise error
        self.differentiation = rest[0]
        reason = str(error).splitlines()[0]
        text = (
            f"differentiation {current} does not support this network ({reason}): using {self.differentiation} instead"
        )
        warnings.warn(text, DifferentiationWarning, stacklevel=3)


# Parts of PyTorch's messages about a missing derivative, of an operator or of a custom autograd.Function.
_MISSING_DERIVATIVE_MESSAGES = ("forward AD", "forward mode AD", "is not implemented", "once_differentiable")


class MetaGradient(DifferentiationWithFallback):
    """Computes ∂L_meta/∂φ with one of three kinds of differentiation.

    Parameters
    ----------
    differentiation : {"exact", "double-backward", "finite-difference"}, default "exact"
        See the module's docstring. Where an operator has no forward-mode derivative, `exact` falls back to
        `double-backward`, and that to `finite-difference`, with a `DifferentiationWarning`.

    References
    ----------
    .. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
       https://arxiv.org/abs/2103.10869

    Examples
    --------
    One linear layer, one sample, two classes. The clean sample has label 0, so the logit s_0 of the soft label has to
    increase:

    >>> import torch
    >>> from torch.func import functional_call
    >>> from metalabelnet.core.losses import classification_loss, cross_entropy
    >>> from metalabelnet.core.meta_gradient import MetaGradient
    >>> f = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(f.weight)
    >>> theta, x = dict(f.named_parameters()), torch.ones(1, 1)
    >>> s = torch.zeros(1, 2, requires_grad=True)
    >>> (grad_s,) = MetaGradient("exact")(
    ...     theta=theta,
    ...     phi=[s],
    ...     logits=f(x),
    ...     logits_at=lambda weights: functional_call(f, weights, (x,)),
    ...     training_loss=lambda z: classification_loss(z, s.log_softmax(1)).mean(),
    ...     meta_loss=lambda weights: cross_entropy(functional_call(f, weights, (x,)), torch.tensor([0])).mean(),
    ...     inner_step=1.0,
    ... )
    >>> grad_s
    tensor([[-0.2500,  0.2500]])
    """

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
    ) -> tuple[Tensor, ...]:
        """Return the gradient of the meta loss with respect to each tensor of φ.

        Parameters
        ----------
        theta : dict of str to Tensor
            θ, the weights of the classifier by name.
        phi : sequence of Tensor
            φ, the tensors to differentiate with respect to.
        logits : Tensor of shape (N, C)
            z = f_θ(x). Its graph is kept.
        logits_at : callable
            θ' ↦ f_θ'(x) for the same batch and dropout mask, without updates of BatchNorm's running statistics.
        training_loss : callable
            z ↦ L(z, φ), a scalar with a graph to φ.
        meta_loss : callable
            θ̂ ↦ L_meta(θ̂), a scalar. Called once.
        inner_step : float or Tensor
            α, the length of the look-ahead step.

        Returns
        -------
        tuple of Tensor
            One gradient per tensor of `phi`.
        """
        weights = list(theta.values())
        loss = training_loss(logits)
        create_graph = self.differentiation == "double-backward"
        gradient = torch.autograd.grad(loss, weights, retain_graph=True, create_graph=create_graph, allow_unused=True)
        theta_hat = look_ahead(theta, gradient, inner_step)
        gradient = gradient if create_graph else ()
        g = gradients(meta_loss(theta_hat), theta_hat)
        del theta_hat

        while True:
            try:
                if self.differentiation == "exact":
                    return _mixed_derivative(training_loss, logits, _jvp(logits_at, theta, g), phi, inner_step)
                if self.differentiation == "double-backward":
                    if not create_graph:
                        gradient = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
                    return differentiate_gradient(gradient, {name: -inner_step * d for name, d in g.items()}, phi)
                tangent = _finite_difference_jvp(logits_at, theta, g)
                return _mixed_derivative(training_loss, logits, tangent, phi, inner_step)
            except (NotImplementedError, RuntimeError) as error:
                self.fall_back(error)


def look_ahead(theta: Theta, gradient: Sequence[Tensor | None], step: float | Tensor) -> Theta:
    """Return θ̂ = θ − α ∇θ L as new leaf tensors. Weights without a gradient are copied.

    Parameters
    ----------
    theta : dict of str to Tensor
        θ.
    gradient : sequence of Tensor or None
        ∇θ L, in the order of `theta`; None for a weight that L does not depend on.
    step : float or Tensor
        α.

    Returns
    -------
    dict of str to Tensor

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.meta_gradient import look_ahead
    >>> look_ahead({"w": torch.tensor([1.0])}, [torch.tensor([2.0])], 0.25)
    {'w': tensor([0.5000], requires_grad=True)}
    """
    used = [name for name, d in zip(theta, gradient, strict=True) if d is not None]
    with torch.no_grad():
        steps = torch._foreach_mul([d for d in gradient if d is not None], step)  # noqa: SLF001 (as torch.optim does)
        stepped = torch._foreach_sub([theta[name] for name in used], steps)  # noqa: SLF001
    moved = dict(zip(used, stepped, strict=True))
    return {
        name: (moved[name] if name in moved else weight.detach().clone()).requires_grad_()
        for name, weight in theta.items()
    }


def gradients(loss: Tensor, theta: Theta) -> Theta:
    """Return ∇θ of a loss by name, zero for a weight that it does not depend on.

    Parameters
    ----------
    loss : Tensor
        A scalar.
    theta : dict of str to Tensor
        θ.

    Returns
    -------
    dict of str to Tensor

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.meta_gradient import gradients
    >>> theta = {"used": torch.tensor(3.0, requires_grad=True), "unused": torch.tensor(1.0, requires_grad=True)}
    >>> gradients(theta["used"] ** 2, theta)
    {'used': tensor(6.), 'unused': tensor(0.)}
    """
    gradient = torch.autograd.grad(loss, list(theta.values()), allow_unused=True)
    return {
        name: torch.zeros_like(weight) if d is None else d
        for (name, weight), d in zip(theta.items(), gradient, strict=True)
    }


def _mixed_derivative(
    training_loss: Callable[[Tensor], Tensor],
    logits: Tensor,
    tangent: Tensor,
    phi: Sequence[Tensor],
    step: float | Tensor,
) -> tuple[Tensor, ...]:
    """Return −α ∂/∂φ ⟨∂L/∂z, ż⟩ with z and ż constant."""
    z = logits.detach().requires_grad_()
    (grad_z,) = torch.autograd.grad(training_loss(z), z, create_graph=True)
    return torch.autograd.grad(-step * (grad_z * tangent).sum(), phi)


def _jvp(logits_at: Callable[[Theta], Tensor], theta: Theta, g: Theta) -> Tensor:
    """Return ż = J_θ z · g by forward mode, without a backward graph."""
    with torch.no_grad(), forward_ad.dual_level():
        dual = {name: make_dual(weight.detach(), g[name]) for name, weight in theta.items()}
        tangent: Tensor | None = unpack_dual(logits_at(dual)).tangent
    if tangent is None:
        raise NotImplementedError("the logits have no tangent: an operator of the network does not support forward AD")
    return tangent


def _finite_difference_jvp(logits_at: Callable[[Theta], Tensor], theta: Theta, g: Theta) -> Tensor:
    """Return ż ≈ (z(θ + εg) − z(θ − εg)) / 2ε."""
    with torch.no_grad():
        epsilon = finite_difference_step(g)
        ahead, behind = (logits_at(shift(theta, g, by)) for by in (epsilon, -epsilon))
        return (ahead - behind) / (2 * epsilon)


def finite_difference_step(g: Theta) -> Tensor:
    """Return ε = 0.01/‖g‖, so that a finite difference along g moves θ by 0.01."""
    norm = torch.stack([d.square().sum() for d in g.values()]).sum().sqrt()
    return 0.01 / norm.clamp_min(torch.finfo(norm.dtype).tiny)


def shift(theta: Theta, g: Theta, by: Tensor) -> Theta:
    """Return θ + εg."""
    return {name: weight + by * g[name] for name, weight in theta.items()}


def differentiate_gradient(
    gradient: Sequence[Tensor | None], direction: Theta, phi: Sequence[Tensor], *, zero_if_unused: bool = False
) -> tuple[Tensor, ...]:
    """Return ∂/∂φ ⟨direction, ∇θ L⟩ from the graph of ∇θ L."""
    pairs = zip(gradient, direction.values(), strict=True)
    differentiable = [(d, cotangent) for d, cotangent in pairs if d is not None and d.requires_grad]
    outputs, cotangents = zip(*differentiable, strict=True)
    if any(node.name().endswith("::Error") for node in _graph_nodes(outputs)):
        raise NotImplementedError("a function of the network is marked once_differentiable")
    return torch.autograd.grad(
        outputs, phi, grad_outputs=cotangents, retain_graph=True, materialize_grads=zero_if_unused
    )


def _graph_nodes(outputs: Iterable[Tensor]) -> set[Node]:
    """Return all nodes of the autograd graph of these tensors.

    The graph of a function marked `once_differentiable` ends in a node that raises an error when it is executed.
    `autograd.grad` does not execute that node, because φ is not behind it, and silently omits the contribution of all
    weights before the function.
    """
    nodes: set[Node] = set()
    pending = [output.grad_fn for output in outputs]
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            pending.extend(following for following, _ in node.next_functions)
    return nodes
