"""The meta-gradient against the definition, double backward, gradcheck, and a case worked by hand."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import classification_loss, cross_entropy
from metalabelnet.core.meta_gradient import DIFFERENTIATIONS, DifferentiationWarning, MetaGradient
from metalabelnet.errors import InputError
from networks import NETWORKS, FunctionNet, SquareOnceDifferentiable, SquareWithoutForwardMode, make

N, C, ALPHA = 6, 3, 0.7


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, x_m = (torch.randn(N, 2, 8, 8, dtype=torch.float64, generator=g) for _ in range(2))
    return x, x_m, torch.randint(C, (N,), generator=g)


def label_logits(seed: int = 7) -> Tensor:
    return torch.randn(N, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def meta_gradient(differentiation: str | MetaGradient, net: nn.Module, s: Tensor) -> Tensor:
    """∂L_meta/∂s for free label logits s."""
    x, x_m, y_m = batch()
    theta = trainable_parameters(net)
    compute = MetaGradient(differentiation) if isinstance(differentiation, str) else differentiation
    (grad_s,) = compute(
        theta=theta,
        phi=[s],
        logits=forward(net, x, theta, seed=3, update_statistics=True),
        logits_at=lambda t: forward(net, x, t, seed=3, update_statistics=False),
        training_loss=lambda z: classification_loss(z, s.log_softmax(1)).mean(),
        meta_loss=lambda t: cross_entropy(forward(net, x_m, t, seed=4, update_statistics=False), y_m).mean(),
        inner_step=ALPHA,
    )
    return grad_s


def definition(net: nn.Module, s: Tensor) -> Tensor:
    """∂L_meta(θ − α∇θ L_c)/∂s by plain autograd."""
    x, x_m, y_m = batch()
    theta = trainable_parameters(net)
    p = forward(net, x, theta, seed=3, update_statistics=False).softmax(1)
    loss = (p * (p.log() - s.softmax(1).log())).sum() / N
    d = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
    theta_hat = {k: w - ALPHA * dw for (k, w), dw in zip(theta.items(), d, strict=True)}
    z = forward(net, x_m, theta_hat, seed=4, update_statistics=False)
    return torch.autograd.grad(-z.softmax(1).log()[range(N), y_m].mean(), s)[0]


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_equals_double_backward(name: str) -> None:
    net, s = make(name).train(), label_logits()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DifferentiationWarning)
        exact, double = (meta_gradient(differentiation, net, s) for differentiation in ("exact", "double-backward"))
    assert relative(exact, double) < 1e-10
    assert relative(double, definition(net, s)) < 1e-10
    assert exact.norm() > 1e-8


def test_finite_difference_is_accurate_on_smooth_net() -> None:
    net, s = make("smooth").train(), label_logits()
    assert relative(meta_gradient("finite-difference", net, s), definition(net, s)) < 1e-2


def test_gradient_of_label_logits_is_alpha_over_n_times_p_dot() -> None:
    """The closed form, with ṗ from torch.func's jvp."""
    net, s = make("smooth").train(), label_logits()
    x, x_m, y_m = batch()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
    theta = {k: w.detach() for k, w in trainable_parameters(net).items()}

    def probabilities(t: dict[str, Tensor]) -> Tensor:
        return functional_call(net, t, (x,)).softmax(1)

    def l_c(t: dict[str, Tensor]) -> Tensor:
        return classification_loss(functional_call(net, t, (x,)), s.detach().log_softmax(1)).mean()

    def l_meta(t: dict[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(net, t, (x_m,)), y_m).mean()

    d = torch.func.grad(l_c)(theta)
    g = torch.func.grad(l_meta)({k: theta[k] - ALPHA * d[k] for k in theta})
    _, p_dot = torch.func.jvp(probabilities, (theta,), (g,))
    torch.testing.assert_close(meta_gradient("exact", net, s), ALPHA / N * p_dot, rtol=1e-10, atol=1e-16)


def test_gradcheck_of_meta_gradient() -> None:
    """The result equals the numerical derivative of L_meta(θ̂(s)) with respect to s."""
    net, s = make("smooth").train(), label_logits()
    x, x_m, y_m = batch()
    theta = trainable_parameters(net)

    class MetaLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, s):
            ctx.save_for_backward(s)
            with torch.enable_grad():
                z = forward(net, x, theta, seed=3, update_statistics=False)
                loss = classification_loss(z, s.log_softmax(1)).mean()
                d = torch.autograd.grad(loss, list(theta.values()))
            hat = {k: w.detach() - ALPHA * dw for (k, w), dw in zip(theta.items(), d, strict=True)}
            return cross_entropy(forward(net, x_m, hat, seed=4, update_statistics=False), y_m).mean().detach()

        @staticmethod
        def backward(ctx, upstream):
            with torch.enable_grad():
                return upstream * meta_gradient("exact", net, ctx.saved_tensors[0].detach().requires_grad_())

    assert torch.autograd.gradcheck(MetaLoss.apply, (s,), eps=1e-5, atol=1e-8, rtol=1e-4)


def test_case_worked_by_hand() -> None:
    """Two samples, two classes, a linear classifier without bias and with zero weights.

    x = (1, 2), θ = (0, 0), so p = (½, ½) for both. Soft labels: ŷ = (0.8, 0.2) and (0.5, 0.5).
    ∂l_c/∂z_j = p_j (log p_j − log ŷ_j − l_c); sample 1: log(½/0.8) = −0.470004, log(½/0.2) = 0.916291,
    l_c = 0.223144, so ∂l_c/∂z = (−0.346574, 0.346574) = ∓½·log 2; sample 2: (0, 0).
    ∇θ L_c = ½ (1·(∓½ log 2) + 2·0) = (−¼ log 2, ¼ log 2); with α = 1: θ̂ = (¼ log 2, −¼ log 2).
    Clean sample x_m = 2 of class 0: z = (½ log 2, −½ log 2), p = (2/3, 1/3);
    g = x_m (p − onehot) = 2·(−1/3, 1/3) = (−2/3, 2/3).
    ż_i = x_i g, ṗ_i = p∘(ż − ⟨p, ż⟩) = x_i·½·(−2/3, 2/3) = x_i (−1/3, 1/3).
    ∂L_meta/∂s_i = (α/N) ṗ_i = ½ x_i (−1/3, 1/3): (−1/6, 1/6) and (−1/3, 1/3).
    """
    net = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(net.weight)
    x, x_m, y_m = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[2.0]]).double(), torch.tensor([0])
    s = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).double().log().requires_grad_()
    expected = torch.tensor([[-1 / 6, 1 / 6], [-1 / 3, 1 / 3]], dtype=torch.float64)
    theta = trainable_parameters(net)
    seen = []

    def l_meta(t: dict[str, Tensor]) -> Tensor:
        seen.append(t["weight"].detach())
        return cross_entropy(functional_call(net, t, (x_m,)), y_m).mean()

    for differentiation in DIFFERENTIATIONS:
        (grad_s,) = MetaGradient(differentiation)(
            theta=theta,
            phi=[s],
            logits=net(x),
            logits_at=lambda t: functional_call(net, t, (x,)),
            training_loss=lambda z: classification_loss(z, s.log_softmax(1)).mean(),
            meta_loss=l_meta,
            inner_step=1.0,
        )
        torch.testing.assert_close(
            grad_s, expected, rtol=1e-4 if differentiation == "finite-difference" else 1e-12, atol=0
        )
        quarter = 0.25 * torch.tensor(2.0).double().log()
        torch.testing.assert_close(seen.pop(), torch.stack([quarter, -quarter])[:, None])


@pytest.mark.parametrize(
    ("function", "used", "warned"),
    [(SquareWithoutForwardMode, "double-backward", 1), (SquareOnceDifferentiable, "finite-difference", 2)],
)
def test_exact_falls_back_with_one_warning(function: type, used: str, warned: int) -> None:
    torch.manual_seed(0)
    net, s = FunctionNet(function).double(), label_logits()
    compute = MetaGradient("exact")
    with pytest.warns(DifferentiationWarning) as caught:
        first = meta_gradient(compute, net, s)
    assert len(caught) == warned
    assert used in str(caught[-1].message)
    assert compute.differentiation == used
    again = meta_gradient(compute, net, s)  # a second warning would raise an error
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    net.function = SquareWithoutForwardMode
    assert relative(first, definition(net, s)) < 1e-2


def test_other_errors_are_raised() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if torch.autograd.forward_ad.unpack_dual(self.weight).tangent is not None:
                raise RuntimeError("out of memory")
            return super().forward(x.flatten(1))

    with pytest.raises(RuntimeError, match="out of memory"):
        meta_gradient("exact", Broken(128, 3).double(), label_logits())


def test_unused_and_frozen_weights() -> None:
    net = make("mlp").train()
    net.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    net[1].bias.requires_grad_(False)
    s = label_logits()
    assert relative(meta_gradient("exact", net, s), meta_gradient("double-backward", net, s)) < 1e-10


def test_unknown_differentiation_suggests_closest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'exact'"):
        MetaGradient("exakt")
