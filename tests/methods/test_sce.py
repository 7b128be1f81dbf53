"""SCE: special cases, a naive loop, gradients, extreme logits."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.methods.sce import SCESettings, reverse_cross_entropy, symmetric_cross_entropy
from small_runs import StepRunner, small_problem, small_run

A = math.log(1e-4)
Y = torch.tensor([0, 3, 1, 2, 0, 1])


def logits(seed: int = 0) -> Tensor:
    return 3 * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(z: Tensor, y: Tensor, a: float, b: float) -> list[float]:
    """a·(−Σ_j y_j log p_j) + b·(−Σ_j p_j log y_j), log 0 = A, computed with Python floats."""
    result = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, row)) for x in row]
        ce = -sum((j == label) * math.log(pj) for j, pj in enumerate(p))
        rce = -sum(pj * (0.0 if j == label else A) for j, pj in enumerate(p))
        result.append(a * ce + b * rce)
    return result


def test_loss_equals_the_papers_formula() -> None:
    loss = symmetric_cross_entropy(logits(), Y, 0.3, 0.7, A)
    torch.testing.assert_close(loss, torch.tensor(naive(logits(), Y, 0.3, 0.7), dtype=torch.float64))


def test_special_cases() -> None:
    z = logits()
    torch.testing.assert_close(symmetric_cross_entropy(z, Y, 1, 0, A), cross_entropy(z, Y))
    torch.testing.assert_close(symmetric_cross_entropy(z, Y, 0, 1, A), reverse_cross_entropy(z, Y, A))


def test_reverse_cross_entropy_is_scaled_mae_and_bounded() -> None:
    p = logits().softmax(1)
    mae = (p - torch.nn.functional.one_hot(Y, 4)).abs().sum(1)
    torch.testing.assert_close(reverse_cross_entropy(logits(), Y, A), -A / 2 * mae)
    confident = torch.tensor([[30.0, 0.0], [0.0, 30.0]], dtype=torch.float64)
    ends = reverse_cross_entropy(confident, torch.tensor([0, 0]), A)
    torch.testing.assert_close(ends, torch.tensor([0.0, -A], dtype=torch.float64))
    assert ends[0] > 0  # no cancellation in 1 − p_y


def test_gradcheck() -> None:
    assert gradcheck(lambda z: symmetric_cross_entropy(z, Y, 0.1, 1, A), (logits().requires_grad_(),))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size]], requires_grad=True)
    total = symmetric_cross_entropy(z, torch.tensor([1, 2]), 0.1, 1, A).sum()
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(z.grad).all()


def test_a_1_b_0_is_cross_entropy() -> None:
    run = small_run("sce", settings={"a": 1.0, "b": 0.0})
    plain = StepRunner(small_run("cross-entropy"), small_problem()).advance(9)
    torch.testing.assert_close(StepRunner(run, small_problem()).advance(9).losses, plain.losses)


@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_zero_out_of_range_is_rejected(zero: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        SCESettings(zero=zero)
