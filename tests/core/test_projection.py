"""Projection onto principal directions: the subspace of an exact decomposition, and equal variances."""

import torch

from metalabelnet.core.projection import find_projection


def test_subspace_equals_that_of_the_exact_decomposition() -> None:
    """The features have rank 5, up to scale and a constant column."""
    g = torch.Generator().manual_seed(0)
    v = torch.randn(60, 5, generator=g, dtype=torch.float64) @ torch.randn(5, 20, generator=g, dtype=torch.float64)
    v = v * torch.linspace(0.1, 100, 20) + 3
    v[:, 7] = 1.0
    P = find_projection(v, 5, torch.Generator().manual_seed(1))
    assert P.shape == (20, 5)
    assert not P[7].any()
    std = v.std(0, correction=0)
    z = torch.where(std > 1e-9, (v - v.mean(0)) / std.clamp_min(1e-9), 0.0)
    projected = v @ P
    projected = projected - projected.mean(0)
    exact = torch.linalg.svd(z, full_matrices=False).U[:, :5]
    basis = torch.linalg.qr(projected)[0]
    torch.testing.assert_close(basis @ basis.T, exact @ exact.T, atol=1e-9, rtol=0)
    torch.testing.assert_close(projected.square().sum(), z.square().sum())  # a rotation keeps the variance


def test_directions_of_largest_variance_are_kept_and_mixed() -> None:
    """One direction is much stronger than the others. Without the rotation it would be a feature of its own."""
    g = torch.Generator().manual_seed(0)
    noise, strong = (torch.randn(200, n, generator=g, dtype=torch.float64) for n in (64, 1))
    v = noise + 10 * strong @ torch.ones(1, 64, dtype=torch.float64)
    P = find_projection(v, 16, torch.Generator().manual_seed(1))
    projected = (v - v.mean(0)) @ P
    z = (v - v.mean(0)) / v.std(0, correction=0)
    assert projected.square().sum() > 0.99 * torch.linalg.svdvals(z)[:16].square().sum()
    variance = projected.square().mean(0)
    assert variance.max() < 8 * variance.mean()
