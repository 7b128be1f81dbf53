"""Bootstrapping: special cases, a naive loop, gradients, extreme logits."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy, entropy_loss
from metalabelnet.errors import InputError
from metalabelnet.methods.bootstrap import BootstrapSettings, hard_bootstrap, soft_bootstrap
from small_runs import StepRunner, small_problem, small_run

Y = torch.tensor([0, 3, 1, 2, 0, 1])


def logits(seed: int = 0) -> Tensor:
    return 2 * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(z: Tensor, y: Tensor, beta: float, *, hard: bool) -> list[float]:
    """−Σ_j (β y_j + (1 − β) t_j) log p_j, computed with Python floats."""
    result = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, row)) for x in row]
        t = [float(pj == max(p)) for pj in p] if hard else p
        result.append(-sum((beta * (j == label) + (1 - beta) * t[j]) * math.log(p[j]) for j in range(len(p))))
    return result


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.95, 1.0])
def test_losses_equal_the_papers_formulas(beta: float) -> None:
    for loss, hard in ((soft_bootstrap, False), (hard_bootstrap, True)):
        expected = torch.tensor(naive(logits(), Y, beta, hard=hard), dtype=torch.float64)
        torch.testing.assert_close(loss(logits(), Y, beta), expected)


def test_special_cases() -> None:
    z = logits()
    torch.testing.assert_close(soft_bootstrap(z, Y, 1), cross_entropy(z, Y))
    torch.testing.assert_close(hard_bootstrap(z, Y, 1), cross_entropy(z, Y))
    torch.testing.assert_close(soft_bootstrap(z, Y, 0), entropy_loss(z))
    torch.testing.assert_close(hard_bootstrap(z, z.argmax(1), 0.4), cross_entropy(z, z.argmax(1)))


def test_gradient_passes_through_the_soft_target() -> None:
    z = logits().requires_grad_()
    assert gradcheck(lambda z: soft_bootstrap(z, Y, 0.5), (z,))
    assert gradcheck(lambda z: hard_bootstrap(z, Y, 0.5), (z,))
    (whole,) = torch.autograd.grad(soft_bootstrap(z, Y, 0.0).sum(), z)
    p, log_p = z.detach().softmax(1), z.log_softmax(1)
    (target_fixed,) = torch.autograd.grad(-(p * log_p).sum(), z)
    assert float(target_fixed.abs().max()) < 1e-12  # with a fixed target the gradient at β = 0 is zero
    assert float(whole.abs().max()) > 0.1


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size]], requires_grad=True)
    y = torch.tensor([1, 2])
    total = (soft_bootstrap(z, y, 0.95) + hard_bootstrap(z, y, 0.8)).sum()
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(z.grad).all()


def test_kind_selects_the_beta() -> None:
    def losses(**settings: object) -> list[float]:
        return StepRunner(small_run("bootstrap", settings=settings), small_problem()).advance(5).losses

    plain = StepRunner(small_run("cross-entropy"), small_problem()).advance(5).losses
    assert losses(kind="soft", hard_beta=0.1) == losses(kind="soft")
    assert losses(kind="hard", soft_beta=0.1) == losses(kind="hard") != losses(kind="soft")
    torch.testing.assert_close(losses(kind="hard", hard_beta=1), plain)
    torch.testing.assert_close(losses(kind="soft", soft_beta=1), plain)


def test_beta_above_one_is_rejected() -> None:
    with pytest.raises(InputError, match=r"hard_beta=1\.5.*0 to 1"):
        BootstrapSettings(hard_beta=1.5)
