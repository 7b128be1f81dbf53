"""Sharpening, mixing and losses of MixMatch against loops and limits."""

import math

import pytest
import torch
from scipy.stats import beta, kstest

from metalabelnet.core.mixmatch import class_balance_loss, draw_shares, labeled_loss, mix, sharpen, unlabeled_loss

G = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 4, generator=G, dtype=torch.float64)
TARGETS = torch.rand(6, 4, generator=G, dtype=torch.float64).softmax(1)
WEIGHTS = torch.tensor([1.0, 0.0, 0.5, 0.0, 2.0, 1.0], dtype=torch.float64)


def test_sharpening_equals_the_formula_and_its_limits() -> None:
    for p, sharp in zip(TARGETS.tolist(), sharpen(TARGETS, 0.5).tolist(), strict=True):
        assert sharp == pytest.approx([value**2 / sum(v**2 for v in p) for value in p])
    torch.testing.assert_close(sharpen(TARGETS, 1.0), TARGETS)
    torch.testing.assert_close(sharpen(TARGETS, 1e-3).max(1).values, torch.ones(6, dtype=torch.float64))
    assert sharpen(torch.tensor([[1.0, 0.0]]), 0.5).tolist() == [[1.0, 0.0]]


def test_mixing_equals_a_loop() -> None:
    partner = torch.tensor([3, 0, 2, 5, 1, 4])
    mixed = mix(LOGITS, partner, torch.tensor(0.7, dtype=torch.float64))
    for i, j in enumerate(partner.tolist()):
        torch.testing.assert_close(mixed[i], 0.7 * LOGITS[i] + 0.3 * LOGITS[j])


def test_draws_have_the_distribution_of_the_larger_share() -> None:
    """Kolmogorov–Smirnov test of max(λ, 1 − λ), whose distribution function is 2 F(x) − 1 on [½, 1]."""
    draws = draw_shares(2000, 4.0, seed=0)
    assert kstest(draws.numpy(), lambda x: 2 * beta.cdf(x, 4, 4) - 1).pvalue > 0.01
    assert torch.equal(draws, draw_shares(2000, 4.0, seed=0))


def test_losses_equal_loops() -> None:
    labeled = unlabeled = 0.0
    for z, t, w in zip(LOGITS.tolist(), TARGETS.tolist(), WEIGHTS.tolist(), strict=True):
        p = [math.exp(value) / sum(math.exp(v) for v in z) for value in z]
        labeled += w * -sum(a * math.log(b) for a, b in zip(t, p, strict=True))
        unlabeled += w * sum((a - b) ** 2 for a, b in zip(t, p, strict=True)) / 4
    assert float(labeled_loss(LOGITS, TARGETS, WEIGHTS)) == pytest.approx(labeled / 4.5)
    assert float(unlabeled_loss(LOGITS, TARGETS, WEIGHTS)) == pytest.approx(unlabeled / 4.5)


def test_losses_without_samples_are_zero() -> None:
    assert labeled_loss(LOGITS, TARGETS, torch.zeros(6)) == 0
    assert unlabeled_loss(LOGITS, TARGETS, torch.zeros(6)) == 0


def test_class_balance_loss_is_the_divergence_from_uniform() -> None:
    p = LOGITS.softmax(1)
    mean = p.mean(0).tolist()
    assert float(class_balance_loss(p)) == pytest.approx(sum(0.25 * math.log(0.25 / m) for m in mean))
    assert class_balance_loss(torch.eye(4)) == pytest.approx(0, abs=1e-6)
    assert torch.isfinite(class_balance_loss(torch.eye(4)[:2]))
