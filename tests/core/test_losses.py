"""Losses: identities, limits and naive loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from metalabelnet.core.losses import (
    classification_loss,
    cross_entropy,
    entropy_loss,
    scale_factor,
    soft_cross_entropy,
)


def logits(rows: int = 6, classes: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive_kl(z: torch.Tensor, s: torch.Tensor) -> list[float]:
    """Σ_j p_j log(p_j / ŷ_j), the paper's equation in plain loops."""
    result = []
    for row_z, row_s in zip(z.tolist(), s.tolist(), strict=True):
        p = [math.exp(a) / sum(map(math.exp, row_z)) for a in row_z]
        y = [math.exp(a) / sum(map(math.exp, row_s)) for a in row_s]
        result.append(sum(pj * math.log(pj / yj) for pj, yj in zip(p, y, strict=True)))
    return result


def test_classification_loss_is_kl_from_prediction_to_label() -> None:
    z, s = logits(), logits(seed=1)
    loss = classification_loss(z, s.log_softmax(1))
    torch.testing.assert_close(loss, torch.tensor(naive_kl(z, s), dtype=torch.float64))
    assert not torch.allclose(loss, torch.tensor(naive_kl(s, z), dtype=torch.float64))


def test_classification_loss_is_zero_for_equal_distributions() -> None:
    torch.testing.assert_close(classification_loss(logits(), logits().log_softmax(1)), torch.zeros(6).double())


def test_classification_loss_of_one_hot_prediction() -> None:
    s = logits(1).log_softmax(1)
    z = torch.tensor([[0.0, 200.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(classification_loss(z, s), -s[:, 1])


def test_entropy_ranges_from_zero_to_log_classes() -> None:
    one_hot, uniform = torch.tensor([[90.0, 0.0, 0.0]]), torch.zeros(1, 3)
    torch.testing.assert_close(entropy_loss(one_hot), torch.zeros(1))
    torch.testing.assert_close(entropy_loss(uniform), torch.tensor([math.log(3)]))


def test_sum_of_classification_and_entropy_loss() -> None:
    """L_c + L_e = −Σ p log ŷ."""
    z, s = logits(), logits(seed=1).log_softmax(1)
    expected = -(z.softmax(1) * s).sum(1)
    torch.testing.assert_close(classification_loss(z, s) + entropy_loss(z), expected)


def test_cross_entropy_is_minus_log_probability() -> None:
    z, y = logits(), torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(cross_entropy(z, y), -z.softmax(1).log()[torch.arange(6), y])


def test_scale_is_one_or_one_over_classes() -> None:
    assert scale_factor("sum", logits()) == 1.0
    assert scale_factor("per-class-mean", logits()) == 0.25


def test_gradcheck() -> None:
    z, s = logits(3).requires_grad_(), logits(3, seed=1).requires_grad_()
    assert gradcheck(lambda z, s: classification_loss(z, s.log_softmax(1)), (z, s))
    assert gradcheck(entropy_loss, (z,))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_are_finite(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size]], requires_grad=True)
    soft = torch.tensor([[0.0, size, -size], [0.0, 0.0, 0.0]]).clamp(-1e3, 1e3).log_softmax(1)
    total = (classification_loss(z, soft) + entropy_loss(z) + cross_entropy(z, torch.tensor([0, 2]))).sum()
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(z.grad).all()


def test_soft_cross_entropy_formula_and_minimum() -> None:
    z, s = logits(), logits(seed=1)
    loss = soft_cross_entropy(z, s.log_softmax(1))
    for row_z, row_s, got in zip(z.tolist(), s.tolist(), loss.tolist(), strict=True):
        norm_z, norm_s = sum(map(math.exp, row_z)), sum(map(math.exp, row_s))
        expected = -sum(
            math.exp(b) / norm_s * math.log(math.exp(a) / norm_z) for a, b in zip(row_z, row_s, strict=True)
        )
        assert got == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(z, s.softmax(1), reduction="none"))
    assert bool((soft_cross_entropy(s, s.log_softmax(1)) <= loss).all())


def test_soft_cross_entropy_gradcheck() -> None:
    s = logits(seed=1).log_softmax(1)
    assert gradcheck(lambda z: soft_cross_entropy(z, s), logits().requires_grad_())
