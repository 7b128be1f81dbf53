"""Transition matrices by counting, estimation and anchors."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.transition_matrix import (
    class_prior,
    count_transitions,
    estimate_transitions,
    noise_rate,
    transitions_from_anchors,
)

C = 5


def make_T(seed: int = 0) -> Tensor:
    """A random transition matrix with different diagonal entries."""
    off = torch.rand(C, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    off = off / off.sum(1, keepdim=True)
    diagonal = torch.linspace(0.5, 0.9, C, dtype=torch.float64)[:, None]
    return diagonal * torch.eye(C) + (1 - diagonal) * off


def labels(T: Tensor, prior: Tensor, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    true = torch.multinomial(prior, n, replacement=True, generator=g)
    return true, torch.multinomial(T[true], 1, generator=g)[:, 0]


def uniform_prior(n: int = C) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def test_count_worked_by_hand() -> None:
    """Class 0: three samples, one with given label 2. Class 1: none. Class 2: one, correct."""
    count = count_transitions(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 2, 0, 2]), 3)
    expected = torch.tensor([[2 / 3, 0, 1 / 3], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(count.T, expected)
    assert count.rate == 0.25
    assert count.standard_error == pytest.approx(math.sqrt(2 / 6 * 4 / 6 / 4))


def test_standard_error_without_wrong_labels() -> None:
    assert count_transitions(torch.arange(3), torch.arange(3), 3).standard_error > 0.2


@pytest.mark.parametrize("n", [80, 2000])
def test_count_is_within_three_standard_errors(n: int) -> None:
    """One of 100 seeds may be further off; the mean error over all seeds is 0 within 3 standard errors."""
    T = make_T()
    truth = noise_rate(T, uniform_prior())
    z = []
    for seed in range(100):
        count = count_transitions(*labels(T, uniform_prior(), n, seed), C)
        z.append((count.rate - truth) / count.standard_error)
    assert sum(abs(x) > 3 for x in z) <= 1
    assert abs(sum(z) / 100) < 3 / 10
    assert sum(x * x for x in z) / 100 > 0.5  # the standard error is not too large


def test_count_of_many_samples_recovers_matrix() -> None:
    T = make_T()
    true, given = labels(T, uniform_prior(), 100_000)
    assert (count_transitions(true, given, C).T - T).abs().max() < 3 * math.sqrt(0.25 / 20_000)


def test_noise_rate_worked_by_hand() -> None:
    T = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    assert noise_rate(T, torch.tensor([0.75, 0.25])) == pytest.approx(0.75 * 0.1 + 0.25 * 0.6)
    assert noise_rate(torch.eye(2), torch.tensor([0.5, 0.5])) == 0


def test_class_prior_is_recovered() -> None:
    T = make_T()
    prior = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64)
    torch.testing.assert_close(class_prior(T, 70 * prior @ T, uniform_prior(), 2000), prior, rtol=0, atol=1e-4)
    estimated = class_prior(T, prior @ T, uniform_prior())
    assert (estimated - prior).abs().sum() < 0.5 * (uniform_prior() - prior).abs().sum()
    assert float(estimated.sum()) == pytest.approx(1)


def confused_predictions(true: Tensor, T: Tensor, confusion: float, seed: int) -> tuple[Tensor, Tensor]:
    """Predictions of a network that knows T but confuses classes: softmax of a noisy one-hot vector, times T."""
    g = torch.Generator().manual_seed(seed)
    noisy = functional.one_hot(true, C) + confusion * torch.randn(len(true), C, dtype=torch.float64, generator=g)
    belief = (noisy / confusion**2).softmax(1)  # the exact posterior for Gaussian noise
    return belief @ T, belief


@pytest.mark.parametrize("confusion", [0.2, 0.5])
def test_estimate_recovers_matrix_where_mean_prediction_does_not(confusion: float) -> None:
    T, prior = make_T(), torch.tensor([0.3, 0.3, 0.2, 0.1, 0.1], dtype=torch.float64)
    clean, _ = labels(T, uniform_prior(), 5000, seed=1)
    true, given = labels(T, prior, 20_000, seed=2)
    p_clean, p_noisy = confused_predictions(clean, T, confusion, 3)[0], confused_predictions(true, T, confusion, 4)[0]
    estimate = estimate_transitions(p_clean, clean, p_noisy, given)
    torch.testing.assert_close(estimate.T.sum(1), torch.ones(C, dtype=torch.float64))
    assert (estimate.T - T).abs().max() < 0.05
    assert (estimate.prior - prior).abs().max() < 0.03
    truth = noise_rate(T, prior)
    assert noise_rate(*estimate) == pytest.approx(truth, abs=0.015)
    if confusion == 0.5:
        mean = 1 - float(p_clean.gather(1, clean[:, None]).mean())
        assert mean > truth + 0.1


def test_estimate_of_certain_network_is_a_count() -> None:
    true, given = labels(make_T(), uniform_prior(), 1000)
    certain = functional.one_hot(true, C).double()
    estimate = estimate_transitions(certain, true, certain, given)
    torch.testing.assert_close(estimate.T, count_transitions(true, given, C).T, rtol=0, atol=1e-6)
    assert noise_rate(*estimate) == pytest.approx(count_transitions(true, given, C).rate, abs=1e-6)


def test_estimate_with_missing_class_and_wrong_certain_predictions() -> None:
    true, given = labels(make_T(), uniform_prior(), 200)
    wrong = functional.one_hot((true + 1) % C, C).float()
    present = true != 2
    estimate = estimate_transitions(wrong[present], true[present], wrong, given)
    assert all(torch.isfinite(t).all() for t in estimate)
    torch.testing.assert_close(estimate.T.sum(1), torch.ones(C, dtype=torch.float64))


def test_anchor_is_highest_sample_below_percentile() -> None:
    """200 samples: p_0 rises from 0 to 1, p_2 is always 0.001. 3 % of 200 are at or above the 97th percentile."""
    p_0 = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    p = torch.stack([p_0, 0.999 - p_0, torch.full_like(p_0, 0.001)], 1)
    T = transitions_from_anchors(p)
    torch.testing.assert_close(T[0], p[193])
    torch.testing.assert_close(T[1], p[6])
    torch.testing.assert_close(T[2].sum(), torch.tensor(1.0, dtype=torch.float64))  # all equal, none is below
    torch.testing.assert_close(transitions_from_anchors(p, 100)[0], p[198])


def test_anchors_recover_matrix() -> None:
    T = make_T()
    true, _ = labels(T, uniform_prior(), 3000)
    p = confused_predictions(true, T, 0.15, 5)[0]
    assert (transitions_from_anchors(p) - T).abs().max() < 0.02


@pytest.mark.parametrize(("classes", "rare"), [(40, False), (100, False), (2, True)])
def test_anchors_with_many_classes_and_with_a_rare_class(classes: int, rare: bool) -> None:
    """If the percentile excluded all samples of a class, its row would come from another class."""
    true = (torch.arange(2000) % 50 == 0).long() if rare else torch.arange(4000) % classes
    T = 0.6 * torch.eye(classes, dtype=torch.float64) + 0.4 / classes
    confusion = torch.rand(len(true), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    p = (1 - confusion) * T[true] + confusion / classes
    torch.testing.assert_close(transitions_from_anchors(p), T, rtol=0, atol=0.1)
