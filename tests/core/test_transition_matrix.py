"""Transition matrices by counting, estimation and anchors, and their correction for confusion."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.transition_matrix import (
    class_prior,
    count_transitions,
    deconfounded,
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


def confused_network(rate: float, confusion: float, classes: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """T, predictions of given labels for clean samples, and their classes.

    Of 20 samples that look like a class, a share `confusion` belongs to the next class; a share `rate` of the labels is
    drawn uniformly. The predictions are exact.
    """
    identity = torch.eye(classes, dtype=torch.float64)
    appearance = torch.arange(classes).repeat_interleave(20)
    true = torch.where(torch.arange(20 * classes) % 20 < round(20 * confusion), (appearance + 1) % classes, appearance)
    posterior = (1 - confusion) * identity + confusion * identity.roll(1, 1)
    p = (1 - rate) * posterior[appearance] + rate / classes
    is_class = functional.one_hot(true, classes).to(p)
    return is_class.T @ p / is_class.sum(0)[:, None], p, true


def uniform_noise(rate: float, classes: int = 10) -> Tensor:
    return (1 - rate) * torch.eye(classes, dtype=torch.float64) + rate / classes


@pytest.mark.parametrize(("rate", "confusion"), [(0.2, 0.1), (0.4, 0.2), (0.8, 0.1)])
def test_confusion_is_removed_for_uniform_noise(rate: float, confusion: float) -> None:
    T, p, true = confused_network(rate, confusion)
    assert (T - uniform_noise(rate)).abs().max() > 0.02
    torch.testing.assert_close(deconfounded(T, p, true), uniform_noise(rate))


@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_feature_dependent_noise_is_kept(rate: float) -> None:
    """Less than 30 % of the apparent noise is on dissimilar classes, so T is not corrected."""
    T, p, true = confused_network(rate, 0.3)
    assert torch.equal(deconfounded(T, p, true), T)


def test_underfitted_network_is_not_corrected() -> None:
    """Its confusion covers all classes, like uniform noise, but the true classes do so too."""
    identity = torch.eye(10, dtype=torch.float64)
    p = (0.4 * identity + 0.06).repeat(50, 1)
    true = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    is_class = functional.one_hot(true, 10).to(p)
    T = is_class.T @ p / is_class.sum(0)[:, None]
    assert torch.equal(deconfounded(T, p, true), T)


def test_mixture_between_thresholds() -> None:
    T, p, true = confused_network(0.12, 0.1)
    corrected, uniform = deconfounded(T, p, true), uniform_noise(0.12)
    share = (corrected - T).norm() / (uniform - T).norm()
    assert 0.05 < share < 0.95
    torch.testing.assert_close(corrected, share * uniform + (1 - share) * T)


def test_class_without_samples_uses_other_classes() -> None:
    T, p, true = confused_network(0.4, 0.2)
    T[3] = 0.1
    torch.testing.assert_close(deconfounded(T, p[true != 3], true[true != 3]), uniform_noise(0.4))


def test_two_classes_are_not_corrected() -> None:
    T, p, true = confused_network(0.4, 0.2, classes=2)
    assert torch.equal(deconfounded(T, p, true), T)


def test_identity_is_kept() -> None:
    T, p, true = confused_network(0.0, 0.0)
    torch.testing.assert_close(deconfounded(T, p, true), torch.eye(10, dtype=torch.float64))


def test_uniform_predictions_keep_uniform_matrix() -> None:
    """All of T is confusion, and the correction does not divide by zero."""
    p, true = torch.full((8, 4), 0.25), torch.arange(8) % 4
    T = torch.full((4, 4), 0.25)
    torch.testing.assert_close(deconfounded(T, p, true), T)
