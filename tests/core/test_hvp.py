"""The gradient through a look-ahead: against plain autograd, for a quadratic, and with missing derivatives."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.hvp import LookAheadGradient
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import DIFFERENTIATIONS, DifferentiationWarning
from metalabelnet.errors import InputError
from networks import NETWORKS, FunctionNet, SquareOnceDifferentiable, SquareWithoutForwardMode, make

N, C, ALPHA = 6, 3, 0.7


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, labels of the training loss, and soft labels of the meta loss."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 2, 8, 8, dtype=torch.float64, generator=g)
    return x, torch.randint(C, (N,), generator=g), torch.rand(N, C, dtype=torch.float64, generator=g).softmax(1)


def look_ahead_gradient(
    differentiation: str | LookAheadGradient, net: nn.Module, alpha: float = ALPHA
) -> tuple[Tensor, dict[str, Tensor]]:
    x, y, q = batch()
    theta = trainable_parameters(net)

    def at(t: dict[str, Tensor]) -> Tensor:
        return forward(net, x, t, seed=3, update_statistics=False)

    differentiation = LookAheadGradient(differentiation) if isinstance(differentiation, str) else differentiation
    return differentiation(
        theta=theta,
        logits=forward(net, x, theta, seed=3, update_statistics=True),
        logits_at=at,
        training_loss=lambda z: cross_entropy(z, y).mean(),
        meta_loss=lambda t: -(q * at(t).log_softmax(1)).sum(1).mean(),
        inner_step=alpha,
    )


def definition(net: nn.Module, alpha: float = ALPHA) -> tuple[Tensor, dict[str, Tensor]]:
    """∇θ L_meta(θ − α∇L(θ)) by plain autograd."""
    x, y, q = batch()
    theta = trainable_parameters(net)
    loss = cross_entropy(forward(net, x, theta, seed=3, update_statistics=False), y).mean()
    d = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
    ahead = {k: w - alpha * dw for (k, w), dw in zip(theta.items(), d, strict=True)}
    meta = -(q * forward(net, x, ahead, seed=3, update_statistics=False).log_softmax(1)).sum(1).mean()
    return meta, dict(zip(theta, torch.autograd.grad(meta, list(theta.values())), strict=True))


def flat(theta: dict[str, Tensor]) -> Tensor:
    return torch.cat([d.flatten() for d in theta.values()])


def relative(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return float((flat(a) - flat(b)).norm() / flat(b).norm())


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_equals_double_backward_and_definition(name: str) -> None:
    net = make(name).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DifferentiationWarning)
        (l_exact, exact), (l_double, double) = (
            look_ahead_gradient(differentiation, net) for differentiation in ("exact", "double-backward")
        )
    l_meta, truth = definition(net)
    assert relative(exact, double) < 1e-10
    assert relative(double, truth) < 1e-10
    torch.testing.assert_close(torch.stack([l_exact, l_double]), l_meta.expand(2), rtol=1e-12, atol=0)
    assert not l_exact.requires_grad


def test_second_order_term_matters() -> None:
    """The gradient at θ' alone differs by more than 10 %, so the tests above can fail."""
    net = make("conv").train()
    first = {k: g.clone() for k, g in definition(net)[1].items()}
    x, _, q = batch()
    theta = trainable_parameters(net)
    y = batch()[1]
    d = torch.autograd.grad(
        cross_entropy(forward(net, x, theta, seed=3, update_statistics=False), y).mean(), theta.values()
    )
    ahead = {k: (w - ALPHA * dw).detach().requires_grad_() for (k, w), dw in zip(theta.items(), d, strict=True)}
    meta = -(q * forward(net, x, ahead, seed=3, update_statistics=False).log_softmax(1)).sum(1).mean()
    assert relative(dict(zip(theta, torch.autograd.grad(meta, ahead.values()), strict=True)), first) > 0.1


def test_finite_difference_is_accurate_on_smooth_net() -> None:
    net = make("smooth").train()
    assert relative(look_ahead_gradient("finite-difference", net)[1], definition(net)[1]) < 1e-2


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_zero_step_gives_plain_gradient(differentiation: str) -> None:
    net = make("conv").train()
    x, _, q = batch()
    theta = trainable_parameters(net)
    loss = -(q * forward(net, x, theta, seed=3, update_statistics=False).log_softmax(1)).sum(1).mean()
    plain = dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))
    assert relative(look_ahead_gradient(differentiation, net, alpha=0.0)[1], plain) < 1e-12


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_hessian_of_quadratic(differentiation: str) -> None:
    """L = ½ θᵀAθ, L_meta = ⟨c, θ'⟩: the gradient is (I − αA) c."""
    g = torch.Generator().manual_seed(0)
    root, theta, c = (torch.randn(s, dtype=torch.float64, generator=g) for s in ((4, 4), (4,), (4,)))
    a = root @ root.T
    theta.requires_grad_()
    loss, gradient = LookAheadGradient(differentiation)(
        theta={"theta": theta},
        logits=theta * 1.0,
        logits_at=lambda t: t["theta"] * 1.0,
        training_loss=lambda z: 0.5 * z @ a @ z,
        meta_loss=lambda t: t["theta"] @ c,
        inner_step=0.3,
    )
    tolerance = 1e-9 if differentiation == "finite-difference" else 1e-12
    torch.testing.assert_close(gradient["theta"], c - 0.3 * a @ c, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(loss, (theta - 0.3 * a @ theta).detach() @ c)


def test_numerical_derivative() -> None:
    """The result equals the numerical derivative of L_meta(θ − α∇L(θ)) along a random direction."""
    net = make("smooth").train()
    _, gradient = look_ahead_gradient("exact", net)
    direction = {
        k: torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(1)) for k, w in gradient.items()
    }

    def moved(by: float) -> float:
        other = make("smooth").train()
        with torch.no_grad():
            for name, weight in trainable_parameters(other).items():
                weight += by * direction[name]
        return float(definition(other)[0].detach())

    numerical = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert float(flat(gradient) @ flat(direction)) == pytest.approx(numerical, rel=1e-6)


def test_unused_and_frozen_weights() -> None:
    net = make("mlp").train()
    net.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    net[1].bias.requires_grad_(False)
    (_, exact), (_, double) = (
        look_ahead_gradient(differentiation, net) for differentiation in ("exact", "double-backward")
    )
    assert relative(exact, double) < 1e-10
    assert "1.bias" not in exact
    assert torch.equal(exact["unused"], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_several_look_aheads_share_one_forward_pass(differentiation: str) -> None:
    net = make("conv").train()
    x, y, _ = batch()
    theta = trainable_parameters(net)
    z = forward(net, x, theta, seed=3, update_statistics=False)
    gradient = LookAheadGradient(differentiation)
    answers = [
        gradient(
            theta=theta,
            logits=z,
            logits_at=lambda t: forward(net, x, t, seed=3, update_statistics=False),
            training_loss=lambda z: cross_entropy(z, y).mean(),
            meta_loss=lambda t: cross_entropy(forward(net, x, t, seed=3, update_statistics=False), y).mean(),
            inner_step=0.1,
        )[1]
        for _ in range(2)
    ]
    assert torch.equal(*map(flat, answers))
    torch.autograd.grad(cross_entropy(z, y).mean(), list(theta.values()))  # the graph is kept


@pytest.mark.parametrize(
    ("function", "used", "warned"),
    [(SquareWithoutForwardMode, "double-backward", 1), (SquareOnceDifferentiable, "finite-difference", 2)],
)
def test_exact_falls_back_with_one_warning(function: type, used: str, warned: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = FunctionNet(function).double()
    gradient = LookAheadGradient("exact")
    with pytest.warns(DifferentiationWarning) as caught:
        first = look_ahead_gradient(gradient, net)[1]
    assert len(caught) == warned
    assert used in str(caught[-1].message)
    assert gradient.differentiation == used
    again = look_ahead_gradient(gradient, net)[1]  # a second warning would raise an error
    assert torch.equal(flat(first), flat(again))
    net.function = SquareWithoutForwardMode
    assert relative(first, definition(net)[1]) < 1e-2


def test_unknown_differentiation_suggests_closest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'exact'"):
        LookAheadGradient("exakt")
